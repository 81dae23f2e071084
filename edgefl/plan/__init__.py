"""The plan: its format, its reader, and the export of mixtures. A device runs it without a training
framework.
"""
