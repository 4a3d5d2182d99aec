"""Describe a federation on real machines in a file, check it, and make its certificates."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import tyro

from fedsurf.cli.console import new_table, note, out, say
from fedsurf.common.text import counted, listed
from fedsurf.network.config import Calling, GraphKind, Wire

if TYPE_CHECKING:
    import networkx as nx

    from fedsurf.network.engines.federation import Federation

federation = tyro.extras.SubcommandApp()
File = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]


@federation.command(name="new")
def _federation_new(
    file: File,
    agents: int = 8,
    graph: GraphKind = "regular",
    degree: int = 3,
    probability: float | None = None,
    reporting: int | None = None,
    calling: Calling = "in-turn",
    wire: Wire = "float32",
    name: str = "federation",
    label: str = "label",
    optimizer: str = "softmax-head",
    rounds: int = 20,
    seed: int = 0,
    insecure: bool = False,
) -> None:
    """Write a federation's file, with comments, whose sites are all on this machine.

    Names and addresses are yours to change. If a family of graphs does not exist for the number of
    agents, the nearest one does, as in `fedsurf fit`.

    Args:
        file: The file to write, in TOML; it must not exist.
        agents: Number of sites that hold data.
        graph: Which agents communicate; star is through a server.
        degree: Neighbours of each agent (regular, small-world).
        probability: Probability of a link (erdos-renyi), or of rewiring one (small-world).
        reporting: Number of agents that the server calls in a round (star); by default all.
        calling: How the server calls agents (star): all before any is called again, or at random.
        wire: Numbers of messages as they travel; float16 and int8 are rounded, and take fewer bytes.
        name: Name of the federation.
        label: Column of labels in every site's table.
        optimizer: Name of a pretrained optimizer, or a .safetensors file.
        rounds: Rounds of communication.
        seed: Seed of the graph, the server's calls and mini-batches.
        insecure: No encryption and no certificates, for trials on this machine only.
    """
    from fedsurf.common.checks import check_count
    from fedsurf.estimator.federations import family
    from fedsurf.network.engines.federation import write_new
    from fedsurf.network.engines.template import federation_text

    check_count(agents, "agents")
    if reporting is not None and graph != "star":
        raise ValueError(
            f"reporting: got {reporting}, but only with --graph star do some agents report"
        )
    text = federation_text(
        name,
        agents,
        family(graph, agents, degree, probability),
        seed=seed,
        reporting=reporting,
        calling=calling,
        wire=wire,
        optimizer=optimizer,
        rounds=rounds,
        label=label,
        insecure=insecure,
    )
    write_new(file, text)
    then = "check" if insecure else "keys"
    say(f"Next: edit {quote(str(file))}, then fedsurf federation {then} {quote(str(file))}")


@federation.command(name="check")
def _federation_check(
    file: File,
    names: Annotated[tuple[str, ...], tyro.conf.arg(name="as")] = (),
    figure: Path | None = None,
) -> None:
    """List all that is wrong with a federation's file and its certificates, or draw its graph.

    Each problem is one line; the exit code is 1 if there are any.

    Args:
        file: The federation's file.
        names: Check the certificates of these sites only; by default of all.
        figure: Draw the graph into this file, too (.png, .svg or .pdf).
    """
    from fedsurf.network.engines.federation import graph_of, problems, read_federation
    from fedsurf.pretrained.loading import NAMES

    if figure is not None:
        from fedsurf.evaluation import plots  # slow to import

        plots.check_figure(figure)
    found = problems(file, names or None, optimizers=NAMES)
    if found:
        raise ValueError("\n".join([f"{file} has {counted(len(found), 'problem')}", *found]))
    sound = read_federation(file)
    graph = graph_of(sound)
    _show(sound, graph)
    if figure is not None:
        plots.save(plots.graph_figure(graph, [site.name for site in sound.nodes]), figure)
    if sound.security.insecure:
        note(f"{file}: messages are not encrypted (security.insecure)")
    say(f"{file} is sound")


@federation.command(name="keys")
def _federation_keys(file: File, folder: Path | None = None, days: int = 730) -> None:
    """Make certificates for mutual TLS: an authority's, and one for every site that has none.

    Nothing is overwritten. Each site gets its own folder and nothing else; the folder of the authority
    stays with you, since whoever has its key can take part.

    Args:
        file: The federation's file.
        folder: Where to make a folder for every site; by default security.certificates of the file.
        days: Days for which the certificates of sites are valid.
    """
    from fedsurf.network.engines.config import AUTHORITY
    from fedsurf.network.engines.federation import read_federation
    from fedsurf.network.engines.keys import make_keys

    described = read_federation(file)
    place = described.security.certificates if folder is None else folder
    new = make_keys(described, place, days=days)
    if not new:
        say(f"Every site has its certificate in {place}")
        return
    say(f"Made {counted(len(new), 'certificate')} in {place}: {listed(new)}")
    say(f"Each site gets {place}/NAME only; keep {place / AUTHORITY} to yourself")
    if described.security.insecure:
        note(f"{file}: set insecure = false in [security] to use them")


def _show(federation: "Federation", graph: "nx.Graph") -> None:
    """Print who is linked to whom."""
    sites = federation.nodes
    title = f"{federation.name}: {counted(len(federation.agents), 'agent')}, {counted(graph.size(), 'link')}"
    linked = "linked to"
    columns = ("site", "address", linked)
    table = new_table(title, columns, text=columns, wrap=columns)
    for node, site in enumerate(sites):
        others = sorted(graph[node])
        every = len(others) == len(sites) - 1 > 5
        names = "all others" if every else ", ".join(sites[other].name for other in others)
        table.add_row(site.name, site.address, names)
    out.print(table)
