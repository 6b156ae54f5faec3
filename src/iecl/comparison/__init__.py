"""Numbers side by side: which may be compared, and which differences are more than noise."""
