"""Built-in data sets, one module per source."""
