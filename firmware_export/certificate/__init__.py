"""The parity certificate: what was compared with what, and how to verify it."""
