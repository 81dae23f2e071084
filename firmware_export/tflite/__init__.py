"""Quantized `.tflite` files as data: read, check, run."""
