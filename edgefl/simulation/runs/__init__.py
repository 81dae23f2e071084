"""Runs, resumes, summarizes and compares simulated federations on disk."""
