"""Checks a machine, its broker and its federation, and names the remedies."""
