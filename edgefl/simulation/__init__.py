"""Runs a federation in one process, in several, or on a Ray cluster, with the same bits as over MQTT."""
