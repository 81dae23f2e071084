"""The work of a client on a broadcast, in the simulator and on a device."""
