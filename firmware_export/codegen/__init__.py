"""An int8 `.tflite` -> C."""
