"""Checks a machine, its broker and its federations, and names remedies."""
