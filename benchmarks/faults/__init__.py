"""Faults that are done to data, files and processes on purpose, and what became of each."""
