"""Measures what an aggregator could learn about a client from its updates."""
