"""Differential privacy: the mechanism and the accountant."""
