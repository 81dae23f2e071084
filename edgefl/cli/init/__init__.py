"""Asks up to four questions and writes `federation.toml`."""
