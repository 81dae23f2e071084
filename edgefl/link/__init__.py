"""What a link remembers, and its sockets: nothing of the MQTT client that it is told by."""
