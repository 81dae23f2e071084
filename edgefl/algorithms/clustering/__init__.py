"""Similarity of clients' layers and clusters made by it."""
