"""`edgefl demo`: a federation of four device processes on this machine."""
