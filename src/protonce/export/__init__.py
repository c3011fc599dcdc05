"""`protonce export`: an encoder in the formats of other programs, one module a format."""
