"""The evaluations: each a pure function of arrays, and a front that reads a run folder."""
