"""A plan: what a device runs instead of a training framework. Importing this package needs no TensorFlow."""
