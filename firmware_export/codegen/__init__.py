"""Generates C from an int8 `.tflite`."""
