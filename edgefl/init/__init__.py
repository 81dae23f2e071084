"""`edgefl init`: four questions, one federation.toml."""
