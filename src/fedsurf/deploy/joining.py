"""Joining a federation: the network of a site, or of the server, from the federation's file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fedsurf.common.files import FileError
from fedsurf.common.text import listed
from fedsurf.network.engines.config import SITE_FILES, Federation
from fedsurf.network.engines.federation import digest, network_of, read_federation
from fedsurf.network.engines.problems import problems_here

if TYPE_CHECKING:
    from fedsurf.network.engines.zenoh import ZenohNetwork


def join(
    federation: str | Path | Federation,
    *names: str,
    insecure: bool = False,
    listen: str | None = None,
    returning: bool = False,
) -> ZenohNetwork:
    """Return the network of the agents with these names, on which any algorithm for a graph or a server runs.

    It is a context manager: entering it connects to the neighbours and waits for them. Others join in
    their own processes, with the same file.

    Parameters
    ----------
    federation : str, Path or Federation
        The federation, or its file.
    *names : str
        The agents that live here: one, or all that have one address; or the server.
    insecure : bool
        Go without certificates, also beyond this machine: anybody can read and forge messages.
    listen : str or None
        "host:port" on which this process listens, if not its address, as behind a router or in a container.
    returning : bool
        This process was there before: its neighbours may be training already, or be dead.

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
    if not (insecure or federation.security.insecure):
        wrong = problems_here(federation, [first[addresses[own]]])
        if wrong:
            raise FileError("\n".join(wrong))
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
        insecure=insecure,
        listen=listen,
        returning=returning,
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
    if len(found) > 1 or sorted(everybody) != sorted(names):
        raise ValueError(
            f"names: got {listed(names)}, but {listed(everybody)} have their addresses: one process is for "
            "all agents of one address, and no others"
        )
    return found.pop()
