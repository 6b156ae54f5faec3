"""Weights for other programs."""
