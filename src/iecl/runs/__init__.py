"""The run directory: the only bridge between training and what looks at it."""
