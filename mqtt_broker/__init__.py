"""The broker and the aggregator service of a federation."""
