"""Reads, checks and runs quantized `.tflite` files."""
