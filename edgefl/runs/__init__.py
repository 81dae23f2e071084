"""Simulated federations on disk: run, resume, summarize, compare."""
