"""What is wrong with a federation: in itself, and with the certificates on this machine."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from fedsurf.common.checks import check_count, check_positive
from fedsurf.common.text import counted, listed
from fedsurf.network.engines.config import (
    AUTHORITY,
    Agent,
    Federation,
    Server,
    host_and_port,
    on_loopback,
)
from fedsurf.network.engines.whole import graph_of

MAX_NAME_CHARACTERS = 64
"""Length of the longest common name of a certificate."""
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_NAME_CHARACTERS - 1}}}")


def problems_of(federation: Federation) -> list[str]:
    """List what is wrong with a federation, whatever machine it is on, one line each."""
    return [
        *_names(federation),
        *_addresses(federation.agents, federation.server),
        *_topology(federation),
        *_learned(federation),
        *_deadlines(federation),
        *_without_effect(federation),
    ]


def problems_here(federation: Federation, names: Collection[str] | None = None) -> list[str]:
    """List what is wrong with encryption: certificates on this machine, or none beyond loopback.

    The certificates are those of the sites with these names, or of all.
    """
    known = [site.name for site in federation.nodes]
    unknown = [name for name in names or () if name not in known]
    if unknown:
        return [f"agents: there is no {name!r}; there are {listed(known)}" for name in unknown]
    if federation.security.insecure:
        return [
            f"security.insecure: got true, but {site.name} at {site.address} is not on loopback, and needs "
            "certificates: fedsurf federation keys"
            for site in federation.nodes
            if not on_loopback(site.address)
        ]
    sites = [site for site in federation.nodes if names is None or site.name in names]
    folder = federation.security.certificates
    if not folder.is_dir():
        return [
            f"security.certificates: there is no folder {folder}; make certificates with "
            "fedsurf federation keys"
        ]
    return [line for site in sites for line in _certificate(folder, site)]


def _certificate(folder: Path, site: Agent) -> list[str]:
    try:
        host, _ = host_and_port(site.address)
    except ValueError:  # one of problems_of
        return []
    from fedsurf.network.engines.certificates import certificate_problems  # needs cryptography

    return certificate_problems(folder / site.name, site.name, host)


def _names(federation: Federation) -> Iterator[str]:
    names = [site.name for site in federation.nodes]
    where = ["server.name"] if federation.server else []
    where += [f"agents #{number}.name" for number in range(1, len(federation.agents) + 1)]
    wanted = (
        f"1 to {MAX_NAME_CHARACTERS} of the letters a to z and A to Z, digits, '-', '_' and '.', "
        "a letter or digit first"
    )
    for place, name in [("name", federation.name), *zip(where, names, strict=True)]:
        if not _NAME.fullmatch(name):
            yield f"{place}: got {name!r}, but it must be {wanted}"
    for place, name in zip(where, names, strict=True):
        if name.casefold() == AUTHORITY:
            yield f"{place}: got {name!r}, but that is the folder of the authority's key"
    for name in _repeated(name.casefold() for name in names):  # folders may ignore case
        yield f"agents: got the name {name!r} more than once, but names must differ in more than case"


def _addresses(sites: Collection[Agent], server: Server | None) -> Iterator[str]:
    for site in sites:
        try:
            host_and_port(site.address)
        except ValueError as error:
            yield f"address of {site.name}: {error}"
    if server is not None:  # agents with one address live in one process, which the server does not
        for site in sites:
            if site.address == server.address:
                yield f"address of {site.name}: got {site.address!r}, which is that of the server"


def _topology(federation: Federation) -> Iterator[str]:
    graph, server, count = federation.graph, federation.server, len(federation.agents)
    if not count:
        yield "agents: got none, but there must be at least one"
    if (graph is None) == (server is None):
        got = "neither" if graph is None else "both"
        yield f"graph, server: got {got}, but there must be a graph of agents or a server"
    if server is not None and server.reporting is not None:
        yield from _failures(check_count, server.reporting, "server.reporting", 1, "", count)
    if graph is None or not count:
        return
    if (graph.kind is None) == (not graph.links):
        got = "both" if graph.links else "neither"
        yield f"graph: got {got} of kind and links, but it must be one of the two"
    elif graph.kind == "star":
        yield "graph.kind: got 'star', but a star takes a table [server] with its address, and no graph"
    elif graph.kind is not None:
        yield from (f"graph: {line}" for line in _failures(graph_of, federation))
    else:
        yield from _links(federation, graph.links)


def _links(federation: Federation, links: Iterable[tuple[str, ...]]) -> Iterator[str]:
    from networkx import connected_components

    known, sound = [agent.name for agent in federation.agents], True
    for number, link in enumerate(links, 1):
        problem = None
        if len(link) != 2 or link[0] == link[1]:
            problem = f"got {list(link)}, but it must be the names of two agents"
        elif unknown := [name for name in link if name not in known]:
            problem = f"got {unknown[0]!r}, but the agents are {listed(known)}"
        if problem is not None:
            sound = False
            yield f"graph.links #{number}: {problem}"
    if not sound or len(set(known)) < len(known):
        return
    parts = [sorted(part) for part in connected_components(graph_of(federation))]
    if len(parts) > 1:
        shown = "; ".join(listed(known[node] for node in part) for part in parts[:5])
        more = f"; and {counted(len(parts) - 5, 'more part')}" if len(parts) > 5 else ""
        yield (
            f"graph.links: got {len(parts)} parts without a link between them, but all agents must be "
            f"connected: {shown}{more}"
        )


def _learned(federation: Federation) -> Iterator[str]:
    yield from _failures(check_count, federation.training.rounds, "training.rounds")
    optimizer = Path(federation.training.optimizer)
    if optimizer.suffix == ".safetensors" and not optimizer.is_file():
        yield f"training.optimizer: got {str(optimizer)!r}, but there is no such file"
    data = federation.data
    if not data.label:
        yield "data.label: got '', but it must be the name of a column"
    if len(data.classes) == 1:
        yield f"data.classes: got {data.classes[0]!r} only, but there must be at least two"
    for name in _repeated(map(str, data.classes)):
        yield f"data.classes: got {name!r} more than once"
    for name in _repeated(data.features):
        yield f"data.features: got {name!r} more than once"
    if data.label in data.features:
        yield f"data.features: got {data.label!r}, but that is the label"


def _deadlines(federation: Federation) -> Iterator[str]:
    limits = federation.deadlines
    found = [
        line
        for name in ("round", "start", "lease")
        for line in _failures(check_positive, getattr(limits, name), f"deadlines.{name}")
    ]
    yield from found
    if not found and limits.round <= limits.lease:
        yield (
            f"deadlines.round: got {limits.round:g} s, but it must be longer than the lease of "
            f"{limits.lease:g} s, or sites that are well count as late"
        )


def _without_effect(federation: Federation) -> Iterator[str]:
    if federation.server is not None and federation.deadlines.late == "stale":
        yield (
            "deadlines.late: got 'stale' with a server, but it uses the replies of a round only: leave it out"
        )


def _failures(check: Callable[..., object], *arguments: object) -> list[str]:
    """Return the error of a check, if it fails."""
    try:
        check(*arguments)
    except (TypeError, ValueError) as error:
        return [str(error)]
    return []


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
