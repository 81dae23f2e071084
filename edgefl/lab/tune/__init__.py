"""Searches for the options of Adaptive Expert Models, stage by stage."""
