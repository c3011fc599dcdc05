"""Data sources and views. No other package handles pixels."""
