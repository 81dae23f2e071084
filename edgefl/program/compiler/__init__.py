"""Compiles a Keras model and the objectives of an algorithm into a plan. It imports TensorFlow."""
