"""Quantized `.tflite` files as data: read, checked, run."""
