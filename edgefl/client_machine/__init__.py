"""The protocol of one client as a machine: events in, actions out, as the round server is one."""
