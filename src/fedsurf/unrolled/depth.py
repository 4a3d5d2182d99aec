"""How deep a transferable optimizer is: that is chosen where it is used, not where it is made."""

ROUNDS_OF_A_LAYER = 2
"""Rounds of communication of a layer; of the last one 1, if a run's rounds are odd."""
CONSTRAINTS = 10
"""Its descending constraints: one for each tenth of the depth, whatever the depth."""
FEWEST_ROUNDS, MOST_ROUNDS = 1, 200
"""The rounds that a run may have."""
MOST_LEARNED = 40
"""The rounds of the longest runs in meta-training: longer ones may end worse than shorter ones."""
