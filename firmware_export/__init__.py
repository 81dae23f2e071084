"""Exports a mixture as an int8 `.tflite` and as firmware, with a parity certificate."""
