"""A live view of a federation, folded from its messages, in the terminal."""
