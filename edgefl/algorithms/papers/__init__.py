"""Federated algorithms. One paper, one file or folder."""
