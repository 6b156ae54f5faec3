"""Parts that methods hold: heads, momentum copy, queue, spectral norm, reversed gradient."""
