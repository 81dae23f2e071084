"""Simulates a federation in processes or on a Ray cluster, with the same results as over MQTT."""
