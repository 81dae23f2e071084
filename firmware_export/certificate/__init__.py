"""The parity certificate: what was compared, and how to verify it."""
