"""A federation on real machines as plain data, which command lines read without torch."""

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fedsurf.network.config import Calling, GraphKind, Wire

LateRows = Literal["renormalised", "stale"]

SITE_FILES = KEY, CERTIFICATE, AUTHORITY_CERTIFICATE = "key.pem", "certificate.pem", "authority.pem"
"""Files of a site, in a folder of its name."""
AUTHORITY = "authority"
"""Folder, among those of the sites, of the authority's own key and certificate."""

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", re.ASCII)


@dataclass(frozen=True)
class Agent:
    """A site that holds data, or the server."""

    #: Its name, which its certificate bears, too.
    name: str
    #: Where the others reach it, host:port; an IPv6 address in brackets.
    address: str


@dataclass(frozen=True)
class Links:
    """Who is linked to whom: a family of graphs, drawn with the federation's seed, or a list of links."""

    #: The family; without it, `links` are the graph.
    kind: GraphKind | None = None
    #: Neighbours of each agent (regular, small-world; even for small-world).
    degree: int = 3
    #: Probability of a link between two agents (erdos-renyi), or of rewiring one (small-world).
    probability: float = 0.1
    #: Pairs of agents' names.
    links: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Server:
    """A server without data, to which agents report."""

    #: Where the agents reach it, host:port.
    address: str
    #: Its name, which its certificate bears, too.
    name: str = "server"
    #: Number of agents that report in a round; None for all.
    reporting: int | None = None
    #: How the server calls them: every agent once before any is called again, or at random.
    calling: Calling = "in-turn"


@dataclass(frozen=True)
class Training:
    """The optimizer."""

    #: Name of a pretrained optimizer, or a .safetensors file, relative to the federation's file.
    optimizer: str = "softmax-head"
    #: Rounds of communication.
    rounds: int = 20


@dataclass(frozen=True)
class Learned:
    """What is learned from every site's table."""

    #: Column of labels.
    label: str = "label"
    #: The classes; without them, the sites agree on all that one of them has.
    classes: tuple[str | int, ...] = ()
    #: Columns of features; without them, all columns but the label, which must be the same at all sites.
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Deadlines:
    """How long a site waits, in seconds, and what it does without a neighbour's row."""

    #: Longest wait for the rows of a round; longer than the lease.
    round: float = 10.0
    #: Longest wait for the others at the start.
    start: float = 600.0
    #: Silence after which a connection counts as dead.
    lease: float = 2.0
    #: A row that is late: go without it, with renormalised weights, or use the sender's last one.
    late: LateRows = "renormalised"


@dataclass(frozen=True)
class Security:
    """Certificates of the sites."""

    #: Folder of the certificates, relative to the federation's file.
    certificates: Path = Path("keys")
    #: No encryption and no authentication; for trying things out on one machine.
    insecure: bool = False


@dataclass(frozen=True)
class Federation:
    """A federation, as its file describes it.

    Agents are numbered in the order of the file; a server is node 0 of the network.

    Examples
    --------
    >>> sites = tuple(Agent(name, f"127.0.0.1:{port}") for name, port in [("a", 7001), ("b", 7002)])
    >>> pair = Federation("pair", sites, graph=Links(links=(("a", "b"),)))
    >>> pair.training.rounds, [node.name for node in pair.nodes]
    (20, ['a', 'b'])
    """

    #: Its name.
    name: str
    #: The sites that hold data.
    agents: tuple[Agent, ...]
    #: Who is linked to whom; or else there is a server.
    graph: Links | None = None
    #: The server; or else there is a graph.
    server: Server | None = None
    #: Seed of the graph, the server's calls and mini-batches.
    seed: int = 0
    #: Numbers of messages as they travel: float32, or rounded to float16 or int8.
    wire: Wire = "float32"
    #: The optimizer.
    training: Training = field(default_factory=Training)
    #: What is learned.
    data: Learned = field(default_factory=Learned)
    #: How long a site waits.
    deadlines: Deadlines = field(default_factory=Deadlines)
    #: Certificates.
    security: Security = field(default_factory=Security)

    @property
    def nodes(self) -> tuple[Agent, ...]:
        """All sites in the order of the network's nodes: the server, if there is one, and the agents."""
        if self.server is None:
            return self.agents
        return Agent(self.server.name, self.server.address), *self.agents


def host_and_port(address: str) -> tuple[str, int]:
    """Divide an address into its host, without brackets, and its port.

    Examples
    --------
    >>> host_and_port("clinic.example.org:7447"), host_and_port("[::1]:7447")
    (('clinic.example.org', 7447), ('::1', 7447))
    """
    host, _, port = address.rpartition(":")
    plain = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    bracketed = plain != host
    numeric = bracketed or re.fullmatch(r"[0-9.]+", host)
    sound = _is_ip(plain, 6 if bracketed else 4) if numeric else _HOST.fullmatch(host)
    if not sound or not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise ValueError(
            f"got {address!r}, but it must be a host and a port from 1 to 65535, such as "
            "clinic.example.org:7447 or [::1]:7447"
        )
    return plain, int(port)


def on_loopback(address: str) -> bool:
    """Return whether an address is on this machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # the name of a host, or no address
        return host == "localhost"


def _is_ip(host: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(host).version == version
    except ValueError:
        return False
