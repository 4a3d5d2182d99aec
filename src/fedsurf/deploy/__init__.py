"""Agents on real machines: a site joins a federation with its own rows."""
