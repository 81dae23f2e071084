"""Quantizes a mixture to an int8 `.tflite`."""
