"""Where a simulation's clients run: in this process, in N processes, or on a Ray cluster; always with the same bits."""
