"""Arithmetic of mixtures of experts: responsibilities, averages of experts, use of the gate."""
