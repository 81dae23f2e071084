"""The built-in networks, one module each."""
