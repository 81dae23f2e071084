"""The plan that a device runs without a training framework: its format, its reader and its templates."""
