"""One short file a system; `base.py` is the interface, `registry.py` the list of them."""
