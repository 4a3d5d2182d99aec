"""Which checkpoint is the best: the best among those whose constraints hold within error."""

from fedsurf.surf.config import SelectBy
from fedsurf.surf.records import ValidationRecord

BEST = {
    "loss": "lowest validation loss",
    "accuracy": "highest pooled validation accuracy",
    "last": "last validation",
}
HOLDING = "among those whose constraints hold within two standard errors"
LOWEST_LOSS = BEST["loss"]
FEASIBLE = f"{LOWEST_LOSS} {HOLDING}"
LEAST_VIOLATION = "smallest violation: no validation had all constraints hold within error yet"


def choose(
    records: list[ValidationRecord], *, constrained: bool, by: SelectBy = "loss"
) -> tuple[ValidationRecord, str]:
    """Return the best of the validations so far, and the rule that chose it."""

    def badness(record: ValidationRecord) -> float:
        values = {
            "loss": record.loss,
            "accuracy": -record.pooled_accuracy,
            "last": -float(record.step),
        }
        return values[by]

    if not constrained:
        return min(records, key=badness), BEST[by]
    feasible = [record for record in records if record.feasible]
    if feasible:
        return min(feasible, key=badness), f"{BEST[by]} {HOLDING}"
    return min(records, key=lambda record: record.violation), LEAST_VIOLATION
