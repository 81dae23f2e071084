"""Encodes messages and weights as bytes: topics, codecs and chunks. Performs no input or output."""
