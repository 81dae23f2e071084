"""A federation of four device processes on this machine."""
