"""Attacks on the program, one module a class of wrong or damaged input; `python -m benchmarks.attack` runs them."""
