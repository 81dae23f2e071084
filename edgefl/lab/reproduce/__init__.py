"""Experiments: the tables and figures of the papers, and the benchmark of outcomes."""
