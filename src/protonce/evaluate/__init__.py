"""Evaluation protocols: pure functions of arrays, and a front end that reads a run folder."""
