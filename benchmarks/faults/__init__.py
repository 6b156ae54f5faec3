"""Faults that are put in on purpose, and how many of them do harm."""
