"""Partitions by name: pure functions that deal samples to clients."""
