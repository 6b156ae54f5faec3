"""Weights of a backbone as files: ours, with proofs, and those of other programs."""
