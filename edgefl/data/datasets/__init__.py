"""Data sets by name, one file a source."""
