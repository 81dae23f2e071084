"""Secure aggregation at the server: rounds, the attempts at a round, and the sum that is stored."""
