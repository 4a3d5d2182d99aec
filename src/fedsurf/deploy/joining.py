"""Joining a federation: the network of a site from the federation's file, and a classifier on its own rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedsurf.common.files import FileError, column_names
from fedsurf.common.progress import OpenBar, silent
from fedsurf.common.text import listed
from fedsurf.common.writing import write_json
from fedsurf.estimator.fit import FitResult, fit_table
from fedsurf.network.engines.config import SITE_FILES, Federation, Learned
from fedsurf.network.engines.federation import digest, network_of, read_federation

if TYPE_CHECKING:
    from fedsurf.network.engines.zenoh import ZenohNetwork


def join(federation: str | Path | Federation, *names: str) -> ZenohNetwork:
    """Return the network of the agents with these names, on which any algorithm for a graph or a server runs.

    It is a context manager: entering it connects to the neighbours and waits for them. Others join in
    their own processes, with the same file.

    Parameters
    ----------
    federation : str, Path or Federation
        The federation, or its file.
    *names : str
        The agents that live here: one, or all that have one address.

    Examples
    --------
    >>> from fedsurf.network.engines.config import Agent, Links, Security
    >>> alone = Federation(
    ...     "alone",
    ...     tuple(Agent(name, "127.0.0.1:7451") for name in ("a", "b")),
    ...     Links("complete"),
    ...     security=Security(insecure=True),
    ... )
    >>> with join(alone, "a", "b") as network:
    ...     network.mix(torch.eye(2)).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    from fedsurf.network.engines.zenoh import ZenohNetwork  # takes the extra `deploy`

    if not isinstance(federation, Federation):
        federation = read_federation(federation)
    nodes = federation.nodes
    addresses = list(dict.fromkeys(node.address for node in nodes))
    processes = [addresses.index(node.address) for node in nodes]
    own = _own_process(federation, processes, names)
    # A process has the name, and the certificate, of its first agent.
    first = {address: node.name for node in reversed(nodes) for address in [node.address]}
    tls = None
    if not federation.security.insecure:
        folder = federation.security.certificates / first[addresses[own]]
        key, certificate, authority = (folder / file for file in SITE_FILES)
        tls = (str(authority), str(certificate), str(key))
    wait = federation.deadlines
    return ZenohNetwork(
        network_of(federation),
        torch.tensor(processes),
        own,
        {first[address]: address for address in addresses},
        name=federation.name,
        digest=digest(federation),
        deadline=wait.round,
        patience=wait.start,
        late=wait.late,
        lease=wait.lease,
        tls=tls,
    )


def _own_process(federation: Federation, processes: Sequence[int], names: Sequence[str]) -> int:
    """Return the number of the process in which the agents with these names live."""
    known = [node.name for node in federation.nodes]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        got = listed(unknown) if unknown else "none"
        raise ValueError(f"names: got {got}, but the federation has {listed(known)}")
    found = {processes[known.index(name)] for name in names}
    everybody = [name for name, process in zip(known, processes, strict=True) if process in found]
    if len(found) > 1 or set(everybody) != set(names):
        raise ValueError(
            f"names: got {listed(names)}, but {listed(everybody)} have their addresses: one process is for "
            "all agents of one address, and no others"
        )
    return found.pop()


def _other_columns(data: Path, learned: Learned) -> list[str]:
    """Return the columns of a table that are neither the label nor a feature that the federation names."""
    if not learned.features:
        return []
    names = column_names(data)
    missing = [name for name in learned.features if name not in names]
    if missing:
        raise FileError(f"{data}: lacks the features {listed(missing)} of the federation")
    return [name for name in names if name != learned.label and name not in learned.features]


@dataclass(frozen=True, eq=False)
class JoinResult:
    """What a site has after it took part in a federation."""

    fit: FitResult
    """The classifier, and how good it is on the site's own held-out rows."""
    names: list[str]
    """The site's agents."""
    missing: list[tuple[int, str, str]]
    """The round, the sender and the reason of every message that did not arrive in time."""
    refused: dict[str, dict[str, int]]
    """How many messages under a process's name were refused, by reason."""
    bytes_sent: dict[str, int]
    bytes_received: dict[str, int]
    """Bytes of messages by neighbour, without those that Zenoh and TLS add."""

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as plain data."""
        return {"names": self.names, **self.fit.to_dict(), **self._messages()}

    def write(self, folder: str | Path) -> None:
        """Write the classifier as `fedsurf fit` does, and messages.json."""
        self.fit.write(folder)
        write_json(Path(folder) / "messages.json", self._messages())

    def _messages(self) -> dict[str, Any]:
        return {
            "missing": [
                {"round": number, "from": name, "why": why} for number, name, why in self.missing
            ],
            "refused": self.refused,
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
        }


def join_table(
    federation: str | Path,
    name: str,
    data: str | Path,
    *,
    test_share: float = 0.2,
    progress: OpenBar = silent,
) -> JoinResult:
    """Train a classifier with the others of a federation on the rows of one site, as `fedsurf join` does.

    The site's table stays here. Features and classes are compared before training: if features differ,
    nobody starts. The federation has a graph, not a server.
    """
    read = read_federation(federation)
    learned, training = read.data, read.training
    if read.server is not None:
        raise ValueError(
            f"federation: got {federation}, which has a server, but sites join over a graph only"
        )
    drop = _other_columns(Path(data), learned)
    with join(read, name) as network:
        result = fit_table(
            data,
            label=learned.label,
            drop=drop,
            test_share=test_share,
            progress=progress,
            network=network,
            optimizer=training.optimizer,
            rounds=training.rounds,
            random_state=read.seed,
        )
        refused = {who: dict(reasons) for who, reasons in network.refused.items()}
        messages = network.missing, refused, network.bytes_sent, network.bytes_received
    return JoinResult(result, [name], *messages)
