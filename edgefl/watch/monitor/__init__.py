"""Live view of a federation in the terminal, built from its messages."""
