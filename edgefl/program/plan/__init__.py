"""The plan that a device runs without a training framework: its format, reader and templates."""
