"""Engines run the clients of a simulation."""
