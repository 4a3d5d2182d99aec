"""What a site and a server of a federation do: train a classifier with the others, and report how it went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedsurf.common.text import listed
from fedsurf.common.writing import write_json
from fedsurf.deploy.joining import join
from fedsurf.deploy.rows import classes_of, read_site, stacked
from fedsurf.estimator.classifier import FederatedClassifier
from fedsurf.estimator.fit import FitResult, alone_accuracy, judged, quiet_fit
from fedsurf.estimator.tables import LabelledTable
from fedsurf.network.engines.config import Federation
from fedsurf.network.engines.federation import read_federation

if TYPE_CHECKING:
    from fedsurf.network.engines.zenoh import ZenohNetwork

    Watch = Callable[[ZenohNetwork, int], AbstractContextManager[object]]

STATE_FILE = "state.safetensors"
"""Name of the file from which a site that was stopped goes on."""


@dataclass(frozen=True)
class Site:
    """What a site held, and how good classifiers are on its own held-out rows."""

    name: str
    rows: int
    """Its training examples."""
    test_rows: int
    """Its held-out examples; without any, there are no accuracies."""
    together: float | None
    """Accuracy of the federation's classifier, the mean of all heads."""
    own_head: float | None
    """Accuracy of the site's own head at the end."""
    alone: float | None
    """Accuracy of a classifier trained on the site's rows only; None also for a single class."""


@dataclass(frozen=True, eq=False)
class JoinResult:
    """What a process has after it took part in a federation."""

    fit: FitResult
    sites: list[Site]
    """The sites of this process; a server has none."""
    messages: dict[str, Any]
    """What was missing, skipped and refused, and bytes by neighbour."""

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        fields = "rounds", "floats", "features", "classes", "accuracy"
        numbers = {name: self.fit.numbers[name] for name in fields}
        sites = [asdict(site) for site in self.sites]
        return {**numbers, "sites": sites, **self.messages, "trajectory": self.fit.trajectory}

    def write(self, folder: str | Path) -> None:
        """Write what `fedsurf fit` writes, the sites' own heads, sites.json and messages.json.

        The file from which the run could go on is removed.
        """
        folder, model, saved = Path(folder), self.fit.model, self.fit.saved
        self.fit.write(folder, STATE_FILE)
        for site, weight, bias in zip(
            self.sites, model.agent_coef_, model.agent_intercept_, strict=True
        ):
            own = replace(saved, weight=weight, bias=bias)
            own.write_file(folder / f"own-{site.name}.safetensors")
        write_json(folder / "sites.json", [asdict(site) for site in self.sites])
        write_json(folder / "messages.json", self.messages)
        (folder / STATE_FILE).unlink(missing_ok=True)


def unwatched(_network: ZenohNetwork, _rounds: int) -> AbstractContextManager[object]:
    """Show nobody how a network does."""
    return nullcontext()


def join_tables(
    federation: str | Path,
    names: Sequence[str],
    data: Sequence[str | Path],
    *,
    test_share: float = 0.2,
    state_file: Path | None = None,
    insecure: bool = False,
    listen: str | None = None,
    watch: Watch = unwatched,
) -> JoinResult:
    """Train a classifier with the others of a federation, as `fedsurf join` does.

    Parameters
    ----------
    federation : str or Path
        The federation's file.
    names, data
        The sites that live in this process, and a table for each; no row of theirs leaves it.
    test_share : float
        Share of each class of a site's rows that is held out for testing.
    state_file : Path or None
        A file that holds the run after each round; if it exists, the run goes on from it.
    insecure, listen
        As for `fedsurf.join`.
    watch : callable
        Shows people the network while it is open; it is given the number of rounds, too.
    """
    read = read_federation(federation)
    if len(data) != len(names):
        raise ValueError(
            f"data: got {listed(data)}, but there must be a table for each of {listed(names)}"
        )
    if read.server is not None and read.server.name in names:
        raise ValueError(f"names: got {read.server.name}, which is the server: fedsurf serve")
    network = _network(read, names, state_file, insecure, listen)
    agents = [agent.name for agent in read.agents]
    numbers = dict(sorted((agents.index(name), place) for place, name in enumerate(names)))
    tables = [read_site(Path(data[place]), read.data, test_share) for place in numbers.values()]
    both = stacked(tables, list(numbers))
    model = _classifier(read, network)
    with watch(network, read.training.rounds), network, quiet_fit():
        model.fit(
            pd.DataFrame(both.x, columns=both.features),
            both.y,
            both.agents,
            classes=classes_of(read.data, both),
            state_file=state_file,
        )
    source = {"data": [Path(path).name for path in data], "drop": [], "test_share": test_share}
    sites = [
        _judged_site(model, number, agents[number], table)
        for number, table in zip(numbers, tables, strict=True)
    ]
    return JoinResult(judged(model, both, source), sites, messages_of(network))


def serve_federation(
    federation: str | Path,
    *,
    state_file: Path | None = None,
    insecure: bool = False,
    listen: str | None = None,
    watch: Watch = unwatched,
) -> JoinResult:
    """Take part as the server of a federation, as `fedsurf serve` does; see `join_tables`."""
    read = read_federation(federation)
    if read.server is None:
        raise ValueError(
            f"federation: got {federation}, which has a graph and no server: fedsurf join"
        )
    network = _network(read, [read.server.name], state_file, insecure, listen)
    model = _classifier(read, network)
    with watch(network, read.training.rounds), network, quiet_fit():
        model.serve(state_file=state_file)
    names = getattr(model, "feature_names_in_", None)
    none = np.zeros((0, model.n_features_in_)), model.classes_[:0]
    features = None if names is None else tuple(names.tolist())
    rows = LabelledTable(*none, None, *none, features=features, label=read.data.label)
    return JoinResult(judged(model, rows, {}), [], messages_of(network))


def messages_of(network: ZenohNetwork) -> dict[str, Any]:
    """Return what a network lost and refused, and its bytes, as plain data."""
    return {
        "missing": [{"round": r, "from": name, "why": why} for r, name, why in network.missing],
        "skipped": [{"from": first, "to": last} for first, last in network.skipped],
        "refused": {who: dict(reasons) for who, reasons in network.refused.items()},
        "bytes_sent": network.bytes_sent,
        "bytes_received": network.bytes_received,
    }


def _network(
    read: Federation,
    names: Sequence[str],
    state_file: Path | None,
    insecure: bool,
    listen: str | None,
) -> ZenohNetwork:
    returning = state_file is not None and state_file.exists()
    return join(read, *names, insecure=insecure, listen=listen, returning=returning)


def _classifier(read: Federation, network: ZenohNetwork) -> FederatedClassifier:
    training = read.training
    return FederatedClassifier(
        training.optimizer, rounds=training.rounds, random_state=read.seed, network=network
    )


def _judged_site(model: FederatedClassifier, number: int, name: str, table: LabelledTable) -> Site:
    x, y, test_x, test_y = table.x, table.y, table.test_x, table.test_y
    together = own = alone = None
    with quiet_fit():
        if len(test_y):
            together = model.score(test_x, test_y)
            own = model.score(test_x, test_y, agent=number)
        if len(test_y) and len(np.unique(y)) > 1:
            alone = alone_accuracy(x, y, np.zeros(len(y), int), test_x, test_y)
    return Site(name, len(y), len(test_y), together, own, alone)
