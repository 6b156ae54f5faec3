"""Faults that a run must survive, injected one by one; `python -m benchmarks.faults` prints the table."""
