"""Measurements that take minutes or hours: `python -m benchmarks.NAME`. None of them runs in the tests."""
