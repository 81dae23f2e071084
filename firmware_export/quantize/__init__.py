"""A mixture -> an int8 `.tflite`."""
