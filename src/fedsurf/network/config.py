"""Configuration of graphs, networks and faults: plain data that command lines read without torch."""

from dataclasses import dataclass, field
from typing import Literal

from fedsurf.common.configuration import ADDED

GraphKind = Literal["regular", "erdos-renyi", "star", "ring", "torus", "complete", "small-world"]
Shift = Literal["adjacency", "metropolis", "laplacian"]
Calling = Literal["random", "in-turn"]
LostWeights = Literal["renormalised", "kept-by-receiver"]
Wire = Literal["float32", "float16", "int8"]


@dataclass(frozen=True)
class GraphConfig:
    """A family of graphs."""

    #: The family. In a star, node 0 is a server that holds no data; all other nodes are agents.
    kind: GraphKind = "regular"
    #: Neighbours of each agent (regular, small-world; even for small-world).
    degree: int = 3
    #: Probability of a link between two agents (erdos-renyi), or of rewiring one (small-world).
    probability: float = 0.1


@dataclass(frozen=True)
class FaultConfig:
    """Faults of a network; none by default.

    Examples
    --------
    >>> import fedsurf
    >>> faults = fedsurf.FaultConfig(stale=2, loss=0.1)
    >>> config = fedsurf.NetworkConfig(faults=faults)
    >>> type(fedsurf.make_network(config, agents=10, generator=fedsurf.generator(0))).__name__
    'LossyNetwork'
    """

    #: Number of stale agents, drawn for each run: their neighbours use what they sent in the round
    #: before (the paper's n_asyn).
    stale: int = 0
    #: Probability that a link loses its message in a round.
    loss: float = 0.0
    #: Probability that an agent leaves before a round.
    leave: float = 0.0
    #: Probability that an agent that left returns before a round.
    comeback: float = 0.5
    #: Weights of messages that do not arrive: scale the receiver's remaining weights to the same
    #: sum, or let the receiver use its own value instead.
    weights: LostWeights = "renormalised"


@dataclass(frozen=True)
class NetworkConfig:
    """A graph, its shift operator, the agents that report to a server, and faults.

    Examples
    --------
    >>> import fedsurf
    >>> from fedsurf.network import GraphConfig
    >>> config = fedsurf.NetworkConfig(GraphConfig("star"), reporting=2)
    >>> star = fedsurf.make_network(config, agents=10, generator=fedsurf.generator(0))
    >>> star.nodes, star.agents, star.reporting
    (11, 10, 2)
    """

    #: The graph.
    graph: GraphConfig = field(default_factory=GraphConfig)
    #: The shift operator: row-normalised adjacency with self-loops, Metropolis–Hastings weights, or
    #: the normalised Laplacian. None selects an average that suits the graph: adjacency in a star,
    #: Metropolis–Hastings weights elsewhere.
    shift: Shift | None = "adjacency"
    #: Number of agents that report to the server in a round of a star; None for all.
    reporting: int | None = None
    #: The way in which the server of a star draws the agents that report: at random in each round,
    #: or in turn, every agent once, in a random order, before any is called again.
    calling: Calling = "random"
    #: Faults of the network; none by default.
    faults: FaultConfig = field(default_factory=FaultConfig)
    #: Numbers of messages as they travel: rounded, if not float32, and counted in bytes.
    wire: Wire = field(default="float32", metadata=ADDED)
