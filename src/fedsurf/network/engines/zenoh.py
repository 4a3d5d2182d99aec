"""An engine for real machines: every process is a peer of Eclipse Zenoh, and rows travel as messages.

Needs the extra `deploy`. A process waits in each round for its neighbours' rows, but neither for a dead
neighbour nor beyond a deadline: the weights of the rows that arrived are scaled as for lost messages.
"""

import re
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from torch import Tensor

from fedsurf.common.checks import check_count, check_positive
from fedsurf.common.text import listed
from fedsurf.network.engines.arrivals import AHEAD, AHEAD_OF_SERVER, Arrivals
from fedsurf.network.engines.config import LateRows
from fedsurf.network.engines.messages import federation_digest
from fedsurf.network.engines.peer import Peer
from fedsurf.network.engines.rounds import PeerNetwork
from fedsurf.network.engines.sessions import Certificates, check_private, open_session
from fedsurf.network.network import Network

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class ZenohNetwork(PeerNetwork):
    """The rows of one process, whose neighbours' rows arrive over Zenoh.

    Rows travel in the `wire` of the network, each to the neighbours that need it in the round. Evaluation
    (`total`, `collect`, `publish`) floods the graph: each process hands on what its neighbours answered. So
    a process needs connections to its neighbours only, as for the rounds, and a star's agents need not be
    reachable. With TLS answers are signed, so that nobody can change those of others. Whoever does not
    answer counts as zero.

    A process that was silent goes on in the round that most of its neighbours are in.

    Parameters
    ----------
    whole : Network
        The network without faults, made alike in every process; it draws what is random in a round.
    owners : Tensor
        The process in which each node's row lives, int64 `[nodes]`.
    process : int
        The number of this process.
    addresses : mapping from str to str
        "host:port" of every process by name, in the order of their numbers.
    name, digest : str
        The federation's name, and what its members have agreed on; messages with another are refused.
    deadline : float
        Seconds that a round waits for a process that is alive, longer than `lease`; an evaluation waits at
        most three times as long.
    patience : float
        Seconds to wait for the neighbours at the start, and for a server that is gone.
    late : {"renormalised", "stale"}
        A row that is late is left out, or the neighbour's last row is used.
    tls : Certificates or tuple of three paths, or None
        Authority, certificate and key; None without TLS, which is for loopback addresses.
    insecure : bool
        Allow other addresses than loopback's without TLS.
    lease : float
        Seconds after which a silent neighbour is dead.
    max_bytes : int
        Size of the largest message that is taken.
    listen : str or None
        "host:port" on which this process listens, if not that by which the others reach it.
    returning : bool
        The others may be there already, or dead: wait for one neighbour only.

    Attributes
    ----------
    missing : list of (int, str, str)
        The round, the name and the reason of every message that was needed and did not arrive.
    skipped : list of (int, int)
        The rounds between which this process, having been silent, skipped others.
    refused : dict from str to Counter
        How many messages under a process's name were refused, by reason.
    insecure : bool
        Whether there is no TLS.
    bytes_sent, bytes_received : dict from str to int
        Bytes of messages by neighbour, without those that Zenoh and TLS add.
    round_bytes_sent, round_bytes_received : dict from str to int
        Those of the rounds alone; the others are answers of evaluations. With one agent in each process,
        what is sent in rounds adds up to `bytes`.

    Examples
    --------
    One process that owns all rows; real ones each have their own number and the same addresses.

    >>> import networkx as nx
    >>> import torch
    >>> import fedsurf
    >>> ring = fedsurf.Network(nx.cycle_graph(3), "metropolis")
    >>> alone = {"clinic-1": "127.0.0.1:0"}
    >>> with ZenohNetwork(
    ...     ring, torch.zeros(3).long(), 0, alone, name="demo", digest="1", deadline=5, patience=5
    ... ) as network:
    ...     network.mix(torch.tensor([[3.0], [0.0], [0.0]])).flatten()
    tensor([1., 1., 1.])
    """

    def __init__(
        self,
        whole: Network,
        owners: Tensor,
        process: int,
        addresses: Mapping[str, str],
        *,
        name: str,
        digest: str,
        deadline: float,
        patience: float,
        late: LateRows = "renormalised",
        tls: Certificates | tuple[str, str, str] | None = None,
        insecure: bool = False,
        lease: float = 2.0,
        max_bytes: int = 2**26,
        listen: str | None = None,
        returning: bool = False,
    ) -> None:
        check_positive(lease, "lease")
        check_count(max_bytes, "max_bytes", 1024)
        names = list(addresses)
        if len(names) != int(owners.max()) + 1:
            raise ValueError(
                f"addresses: got {len(names)}, but owners name {int(owners.max()) + 1} processes"
            )
        check_count(process, "process", 0, most=len(names) - 1)
        for one in (name, *names):
            if not _NAME.fullmatch(one):
                raise ValueError(
                    f"name: got {one!r}, but it must consist of letters, digits, '.', '_' and '-'"
                )
        if deadline <= lease:
            raise ValueError(
                f"deadline: got {deadline}, but it must be longer than the lease, {lease} seconds, "
                "or neighbours that live count as late"
            )
        if tls is None:
            check_private(addresses, insecure)
        self._addresses, self._lease, self._max_bytes = dict(addresses), lease, max_bytes
        self._returning, self._listen = returning, listen
        self.insecure = tls is None
        self._tls = None if tls is None else Certificates(*tls)
        federation = federation_digest(name, digest)
        self._root = f"fedsurf/{name}"
        pairs = {(a, b) for a, b in owners[whole.links].T.tolist() if a != b}
        linked = {one: {b for a, b in pairs if a == one} for one in range(len(names))}
        ahead = AHEAD_OF_SERVER if whole.server else AHEAD
        signatures = None
        if self._tls is not None:
            from fedsurf.network.engines.signatures import CertificateSignatures

            signatures = CertificateSignatures(*self._tls)
        arrivals = Arrivals(
            names, linked[process], federation, max_bytes, ahead, whole.wire, signatures
        )
        peer = Peer(process, linked, arrivals, federation, self._root, signatures)
        super().__init__(
            whole, owners, process, peer, deadline=deadline, patience=patience, late=late
        )

    def __enter__(self) -> Self:
        """Open the session, and wait for all neighbours, at most `patience` seconds."""
        arrivals = self._arrivals
        session = open_session(
            self.names[self.process],
            self._addresses,
            [self.names[one] for one in arrivals.neighbours],
            self._root,
            lease=self._lease,
            max_bytes=self._max_bytes,
            tls=self._tls,
            listen=self._listen,
        )
        self._peer.open(session)
        try:
            self._meet()
        except BaseException:
            self._peer.close()
            raise
        return self

    def _meet(self) -> None:
        """Wait for the neighbours; raise if one of them has another federation."""
        arrivals, count = self._arrivals, len(self._arrivals.neighbours)
        wanted = min(1, count) if self._returning else count

        def met() -> bool:
            # One that differs from most others is wrong itself; else they may still correct theirs.
            return len(arrivals.alive) >= wanted or 2 * len(arrivals.others) > count

        self._peer.wait(met, self.patience)
        if self._returning:
            self._peer.wait(lambda: len(arrivals.alive) == count, self._lease)
        with arrivals.changed:
            others = [self.names[one] for one in sorted(arrivals.others)]
            alone = self._returning and not arrivals.alive
        if alone and count and not others:
            raise ConnectionError(
                f"none of {listed(self.names[one] for one in arrivals.neighbours)} is there: they are down, or "
                "have finished without this process"
            )
        if others and len(arrivals.alive) < wanted:
            raise ConnectionError(
                f"{listed(others)}: got another federation there than here; compare the files, all sites need "
                "the same one"
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session; the neighbours go on without this process."""
        self._peer.close()
