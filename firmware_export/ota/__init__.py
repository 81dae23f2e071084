"""Signed updates of models in the field, and the detection of drift."""
