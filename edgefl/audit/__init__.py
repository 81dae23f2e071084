"""What an aggregator could learn of a client from what the client sends, measured by doing it."""
