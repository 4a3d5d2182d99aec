"""Checks, files, configuration, randomness, statistics and text that all rooms share."""
