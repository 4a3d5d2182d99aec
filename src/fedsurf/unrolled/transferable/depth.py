"""How deep a transferable optimizer is: that is chosen where it is used, not where it is made."""

from fedsurf.common.checks import check_whole

ROUNDS_OF_A_LAYER = 2
"""Rounds of communication of a layer; of the last one 1, if a run's rounds are odd."""
CONSTRAINTS = 10
"""Its descending constraints: one for each tenth of the depth, whatever the depth."""
FEWEST_ROUNDS, MOST_ROUNDS = 1, 200
"""The rounds that a run may have."""
MOST_LEARNED = 40
"""The rounds of the longest runs in meta-training: longer ones may end worse than shorter ones."""


def check_rounds(rounds: int) -> None:
    """Raise for rounds that a run cannot have."""
    check_whole(rounds, "rounds")
    if not FEWEST_ROUNDS <= rounds <= MOST_ROUNDS:
        raise ValueError(
            f"rounds: got {rounds}, but it must be between {FEWEST_ROUNDS} and {MOST_ROUNDS}"
        )


def layers_of(rounds: int) -> int:
    """Return how many layers so many rounds are."""
    return -(-rounds // ROUNDS_OF_A_LAYER)
