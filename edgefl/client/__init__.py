"""What a client does with a broadcast, in the simulator and on a device."""
