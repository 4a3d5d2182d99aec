"""Engines that carry the rounds of a network between processes, each of which holds some of the rows."""
