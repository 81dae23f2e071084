"""Similarity of clients' layers, and clusters of similar clients."""
