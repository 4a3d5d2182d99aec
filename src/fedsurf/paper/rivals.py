"""The classical methods beside U-DGD: which, and with the settings that the paper gives them."""

from fedsurf.evaluation.methods import Setting, method_named

GRAPH_METHODS = ("dgd", "dsgd", "dfedavgm")
"""The paper's rivals over graphs."""
SERVER_METHODS = ("fedavg", "scaffold", "moon", "fedprox", "feddyn")
"""The paper's rivals through a server."""

_PAPER: dict[str, dict[str, Setting]] = {
    "dgd": {"step_size": 1e3, "batch_size": 10},
    "dsgd": {"step_size": 1e4},
    "dfedavgm": {"step_size": 1e2, "local_steps": 6, "batch_size": 10},
}

SILENT = {
    "dgd": "steps of 10³ and mini-batches of 10, as printed in the paper",
    "dsgd": "steps of 10⁴ and single examples, as printed in the paper",
    "dfedavgm": (
        "6 local steps of 10², as printed in the paper, which does not say the momentum: 0.9, "
        "nor the mini-batches: 10"
    ),
}
"""What of a method's settings is the paper's."""


def paper_settings(name: str) -> dict[str, Setting]:
    """Return the paper's settings of a method, with the catalogue's where the paper is silent."""
    return {**method_named(name).defaults, **_PAPER.get(name, {})}


def given_by_paper(name: str) -> bool:
    """Whether the paper gives settings of a method."""
    return name in _PAPER


def where_from(name: str) -> str:
    """Say which of these settings are the paper's."""
    return SILENT.get(name, "the catalogue's textbook values: the paper gives no settings")
