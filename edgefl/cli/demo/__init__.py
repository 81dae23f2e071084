"""Runs a federation on this machine: broker, aggregator and devices as processes."""
