"""What the aggregator decides in a round: who takes part, what counts, how old an update may be."""
