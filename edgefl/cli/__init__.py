"""The `edgefl` command."""
