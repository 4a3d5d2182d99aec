"""A federation on real machines as a file: who takes part, who is linked to whom, and what is learned.

Every site has the same file. From it all of them make the same network (`network_of`), and compare a
`digest` of what must agree before they start. torch is imported when a graph is drawn.
"""

import hashlib
import tomllib
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsurf.common.configuration import from_table, to_dict
from fedsurf.common.files import FileError, read_toml, reading
from fedsurf.common.text import listed, printable
from fedsurf.common.writing import check_file, json_text, replacing
from fedsurf.network.engines.config import Agent, Deadlines, Federation, Links, Security, Server
from fedsurf.network.engines.problems import problems_here, problems_of
from fedsurf.network.engines.whole import graph_of, network_of

__all__ = [
    "Agent",
    "Deadlines",
    "Federation",
    "Links",
    "Security",
    "Server",
    "digest",
    "graph_of",
    "network_of",
    "problems",
    "read_federation",
    "write_new",
]

MAX_LINE_CHARACTERS = 500
"""Length of the longest line about a problem."""


def read_federation(path: str | Path) -> Federation:
    """Read a federation from its TOML file; the paths in it become relative to the current folder.

    A `FileError` names the file, and the first field that is wrong.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pair.toml"
    ...     _ = path.write_text('''
    ...         name = "pair"
    ...         agents = [{name = "a", address = "10.0.0.1:7447"}, {name = "b", address = "10.0.0.2:7447"}]
    ...         graph.kind = "complete"
    ...     ''')
    ...     read_federation(path).agents[1]
    Agent(name='b', address='10.0.0.2:7447')
    """
    federation, found = _parse(Path(path))
    if federation is None or found:
        raise FileError(f"{path}: {found[0]}")
    return federation


def problems(
    path: str | Path,
    names: Collection[str] | None = None,
    *,
    optimizers: Collection[str] | None = None,
) -> list[str]:
    r"""List all that is wrong with a federation's file, and with its certificates here, one line each.

    The certificates are those of the sites with these names, or of all; `optimizers` are the names of the
    pretrained ones. If fields are missing or of a wrong type, these are listed alone.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pair.toml"
    ...     _ = path.write_text("name = 'pair'\nagents = 'a b'\nserer = 1")
    ...     for line in problems(path):
    ...         print(line)
    agents: got 'a b', but it must be a list
    serer: there is no such field; did you mean 'server'?
    """
    try:
        federation, found = _parse(Path(path))
        if federation is not None:
            name = federation.training.optimizer
            if optimizers and name not in optimizers and not name.endswith(".safetensors"):
                wanted = f"{listed(optimizers)}, or a .safetensors file"
                found.append(f"training.optimizer: got {name!r}, but it must be {wanted}")
            found += problems_here(federation, names)
    except FileError as error:
        found = [str(error)]
    return [printable(line, MAX_LINE_CHARACTERS) for line in found]


def write_new(path: str | Path, text: str) -> None:
    """Write a federation's file, unless it exists or something is wrong with it.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from fedsurf.network.config import GraphConfig
    >>> from fedsurf.network.engines.template import federation_text
    >>> with TemporaryDirectory() as folder:
    ...     write_new(Path(folder) / "f.toml", federation_text("f", 2, GraphConfig("ring")))
    ...     [agent.name for agent in read_federation(Path(folder) / "f.toml").agents]
    ['agent-1', 'agent-2']
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path}: this file exists, and is not overwritten")
    check_file(path)
    _, found = _checked(tomllib.loads(text), path.parent)
    if found:
        raise ValueError(found[0])
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _parse(path: Path) -> tuple[Federation | None, list[str]]:
    content = read_toml(path)
    with reading(path, "a federation in TOML"):
        return _checked(content, path.parent)


def _checked(content: dict[str, Any], folder: Path) -> tuple[Federation | None, list[str]]:
    """Return the federation in a folder's file, and all problems that do not depend on this machine."""
    federation, found = from_table(Federation, content)
    if federation is None:
        return None, found
    federation = _placed(federation, folder)
    return federation, problems_of(federation)


def _placed(federation: Federation, folder: Path) -> Federation:
    """Make the paths of a file relative to the current folder."""
    training, security = federation.training, federation.security
    if training.optimizer.endswith(".safetensors"):
        training = replace(training, optimizer=str(folder / training.optimizer))
    security = replace(security, certificates=folder / security.certificates)
    return replace(federation, training=training, security=security)


def digest(federation: Federation) -> str:
    """Return a hash of all that must agree between the sites.

    Not part of it: addresses, since a site may see the others elsewhere, the wait at the start, the folder
    of certificates, and the place of an optimizer's file, whose content counts.

    Examples
    --------
    >>> one = Federation("pair", (Agent("a", "10.0.0.1:7447"), Agent("b", "10.0.0.2:7447")), Links("ring"))
    >>> moved = replace(one, agents=(Agent("a", "a.example.org:7447"), one.agents[1]))
    >>> digest(one) == digest(moved), digest(one) == digest(replace(one, seed=1))
    (True, False)
    """
    content = to_dict(federation)
    for site in [*content["agents"], content["server"] or {}]:
        site.pop("address", None)
    del content["security"], content["deadlines"]["start"]
    optimizer = federation.training.optimizer
    if optimizer.endswith(".safetensors"):
        path = Path(optimizer)
        with reading(path, "an optimizer"), path.open("rb") as file:
            content["training"]["optimizer"] = hashlib.file_digest(file, "sha256").hexdigest()
    text = json_text(content)
    return hashlib.sha256(text.encode()).hexdigest()
