"""Which checkpoint is the best: the best among those whose constraints hold within error."""

from fedsurf.surf.meta_training import ValidationRecord

LOWEST_LOSS = "lowest validation loss"
FEASIBLE = "lowest validation loss among those whose constraints hold within two standard errors"
LEAST_VIOLATION = "smallest violation: no validation had all constraints hold within error yet"


def choose(records: list[ValidationRecord], *, constrained: bool) -> tuple[ValidationRecord, str]:
    """Return the best of the validations so far, and the rule that chose it."""
    if not constrained:
        return min(records, key=lambda record: record.loss), LOWEST_LOSS
    feasible = [record for record in records if record.feasible]
    if feasible:
        return min(feasible, key=lambda record: record.loss), FEASIBLE
    return min(records, key=lambda record: record.violation), LEAST_VIOLATION
