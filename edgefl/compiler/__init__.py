"""A Keras model and the objectives of an algorithm -> a plan. Imports TensorFlow; runs at the aggregator."""
