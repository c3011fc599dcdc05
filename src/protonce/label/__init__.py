"""From a few labels to all images: which to label first, and the labels of the others."""
