"""The tables and figures of the paper as data, what trains and measures them, and what may be said of the result."""
