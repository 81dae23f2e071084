"""Federated algorithms. One paper, one file."""
