"""The parity certificate: what an export compared, and how to verify it."""
