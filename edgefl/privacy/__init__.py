"""What the models of a federation give away about one client, and a bound on it."""
