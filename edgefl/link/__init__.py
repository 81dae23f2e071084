"""What a link remembers: no I/O, and nothing of the MQTT client that it is told by."""
