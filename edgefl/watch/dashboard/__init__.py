"""Shows a federation in a browser."""
