"""Secure aggregation: the server learns the sum of the updates, but no single update."""
