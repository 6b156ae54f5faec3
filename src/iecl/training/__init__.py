"""The one loop that trains any method, and everything around a step."""
