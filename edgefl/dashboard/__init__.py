"""The same view in a browser."""
