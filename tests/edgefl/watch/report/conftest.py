"""Fixtures of real federations."""

from tests.edgefl.real_runs import aem, clustered, simulate_once, write_run

__all__ = ["aem", "clustered", "simulate_once", "write_run"]
