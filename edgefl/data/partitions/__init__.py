"""Partitions by name: pure functions that divide samples among clients."""
