"""States in files: a run of any algorithm can stop after any step and go on with the same numbers.

A state is tensors and numbers only, so saving needs to know nothing of the algorithm. The seed of a
network's draws, and what it remembers between rounds (its counts, whom a server has called, the last
messages of stale agents), go into the same file.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torch import Tensor

from fedsurf.algorithms.algorithm import OwnState, State
from fedsurf.common.files import FileError, read_all_tensors, read_metadata
from fedsurf.common.writing import write_tensors
from fedsurf.network import Network

NETWORK_PREFIX, EXTRA_PREFIX = "network.", "extra."
"""Begin the names of the tensors that a network remembers, and of those that a caller adds."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def save_state(
    path: Path,
    state: State,
    network: Network,
    extra: Mapping[str, Tensor] = _NOTHING,
    notes: Mapping[str, Any] = _NOTHING,
) -> None:
    """Write a state, and what the network remembers, as safetensors.

    `extra` tensors and `notes`, plain data, are the caller's own, for `load_extra`.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import networkx as nx, torch
    >>> from fedsurf import Network
    >>> from fedsurf.algorithms import State
    >>> network = Network(nx.path_graph(2))
    >>> state = State(network.mix(torch.eye(2)), steps=1)
    >>> with TemporaryDirectory() as folder:
    ...     save_state(Path(folder) / "state", state, network)
    ...     network.reset()
    ...     found = load_state(Path(folder) / "state", State(torch.zeros(2, 2)), network)
    >>> found.steps, network.rounds, torch.equal(found.weights, state.weights)
    (1, 1, True)
    """
    tensors, numbers = _divided(state)
    memory = {NETWORK_PREFIX + name: value for name, value in network.state().items()}
    metadata = {"kind": type(state).__name__, "numbers": numbers, "notes": dict(notes)}
    added = {EXTRA_PREFIX + name: value for name, value in extra.items()}
    # Copies: a state may hold one tensor under two names, as before the first step, and a file may not.
    copies = {name: value.clone() for name, value in (tensors | memory | added).items()}
    write_tensors(path, copies, metadata)


def load_state(path: Path, like: OwnState, network: Network) -> OwnState:
    """Read a state of the kind and shapes of `like`, such as what `init` returns; restore the network."""
    metadata, kind = read_metadata(path), type(like).__name__
    if metadata.get("kind") != kind:
        raise FileError(f"{path}: holds a {metadata.get('kind')}, but this method needs a {kind}")
    wanted, numbers = _divided(like)
    stored = metadata.get("numbers")
    if not isinstance(stored, dict) or {n: type(v) for n, v in stored.items()} != {
        name: type(value) for name, value in numbers.items()
    }:
        raise FileError(f"{path}: damaged, the numbers of a {kind} are {', '.join(numbers)}")
    found = read_all_tensors(path)
    memory = _popped(found, NETWORK_PREFIX)
    _popped(found, EXTRA_PREFIX)
    _check_like(path, found, wanted)
    _check_like(path, {n: memory[n] for n in network.state() if n in memory}, network.state())
    network.restore(memory)
    moved: dict[str, Any] = {name: one.to(wanted[name].device) for name, one in found.items()}
    return replace(like, **moved, **stored)


def load_extra(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the caller's own tensors and notes from a file of `save_state`."""
    notes = read_metadata(path).get("notes")
    return _popped(read_all_tensors(path), EXTRA_PREFIX), notes if isinstance(notes, dict) else {}


def _popped(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Remove the tensors whose names begin like that, and return them by the rest of their names."""
    names = [name for name in tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensors.pop(name) for name in names}


def _divided(state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a state's tensors and its numbers, by name."""
    values = {field.name: getattr(state, field.name) for field in fields(state)}
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in values.items() if name not in tensors}


def _check_like(path: Path, found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Raise unless tensors have these names, shapes and types."""
    described = {name: (list(value.shape), value.dtype) for name, value in found.items()}
    expected = {name: (list(value.shape), value.dtype) for name, value in wanted.items()}
    for name in expected | described:
        if described.get(name) != expected.get(name):
            raise FileError(
                f"{path}: {name}: got {described.get(name)}, but {expected.get(name)} was expected"
            )
