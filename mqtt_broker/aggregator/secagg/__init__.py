"""Secure aggregation at the aggregator: rounds, the attempts at a round, and the sum that is kept."""
