"""What protonce is measured against: the usual way of doing the same, as fast as its originals."""
