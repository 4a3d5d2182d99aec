"""Audits (did the optimizer learn to learn?) and certificates (what the theorems imply for a run)."""
