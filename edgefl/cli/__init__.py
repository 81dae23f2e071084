"""The `edgefl` command and its subcommands."""
