"""Many systems, one table: train each with the same data, encoder and budget, and score all by one code path."""
