"""What is learned: the algorithms, what a client does with them, and privacy."""
