"""Checkpoints, and the directories of devices, aggregators and runs."""
