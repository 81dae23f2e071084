"""One module for each algorithm of a paper. Each module provides its `ENTRIES`."""
