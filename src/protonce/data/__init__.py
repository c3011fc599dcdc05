"""Where images come from and what becomes of them. Nothing outside this package knows of pixels."""
