"""SAIB, the learnable block that adds entropy to a view: images in, images of the same shape out, training only."""
