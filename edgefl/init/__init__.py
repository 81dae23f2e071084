"""Asks four questions and writes `federation.toml`."""
