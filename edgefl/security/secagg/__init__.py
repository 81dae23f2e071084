"""Secure aggregation: the server sees the sum of the updates and no single one."""
