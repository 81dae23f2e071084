"""What is wrong with a machine, its broker or its federation, and the remedy."""
