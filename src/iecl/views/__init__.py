"""Random views of whole batches: parameters are drawn by counter, then applied as tensor operations."""
