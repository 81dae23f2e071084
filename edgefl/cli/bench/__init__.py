"""Benchmarks that engineers run on their own hardware."""
