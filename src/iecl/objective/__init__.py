"""The IE-CL objective around any method."""
