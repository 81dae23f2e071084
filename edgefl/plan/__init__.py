"""The plan, which a device runs instead of a training framework: its format and its filling."""
