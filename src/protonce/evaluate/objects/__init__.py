"""Detection and segmentation with the backbone of a run (table 6, appendix D)."""
