"""Research in a clone: the experiments of the papers and the tuner."""
