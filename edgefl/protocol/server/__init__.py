"""Server-side rules of a round: the cohort, the updates that count, and the age that an update may have."""
