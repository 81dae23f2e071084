"""Signed updates of models in the field, and the signs that one is due."""
