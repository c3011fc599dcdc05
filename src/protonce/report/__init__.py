"""The HTML report of a run: `protonce report RUN`."""
