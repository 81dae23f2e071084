"""Simulated federations on disk: a directory a run, that can be resumed, compared and drawn."""
