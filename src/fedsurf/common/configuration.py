"""Conversion of configurations, which are frozen dataclasses, to plain data for JSON and back."""

import dataclasses
import difflib
import sys
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from fedsurf.common.checks import check_option
from fedsurf.common.text import listed

Config = TypeVar("Config")

ADDED = {"added": True}
"""Metadata of a field that files from before it existed lack; they have its default."""


def to_dict(config: Any) -> Any:
    """Turn a (nested) configuration into plain dictionaries, lists, strings and numbers.

    Examples
    --------
    >>> from fedsurf.network.config import GraphConfig
    >>> to_dict(GraphConfig("star"))
    {'kind': 'star', 'degree': 3, 'probability': 0.1}
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {
            field.name: to_dict(getattr(config, field.name)) for field in dataclasses.fields(config)
        }
    if isinstance(config, Path):
        return str(config)
    if isinstance(config, dict):
        return {name: to_dict(item) for name, item in config.items()}
    if isinstance(config, tuple | list):
        return [to_dict(item) for item in config]
    return config


def from_dict(kind: type[Config], content: Any, where: str = "configuration") -> Config:
    """Rebuild a configuration from what `to_dict` returned.

    Unknown and missing fields raise a ValueError that names them, but fields with the metadata `ADDED` may
    be missing; `where` names the configuration in errors.
    """
    if not isinstance(content, dict):
        raise ValueError(f"{where}: got {content!r}, but it must be a table of fields")  # noqa: TRY004
    hints = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = {
        field.name for field in fields if field.name in content or not field.metadata.get("added")
    }
    if set(content) != names:
        raise ValueError(
            f"{where}: lacks the fields {sorted(names - set(content))} "
            f"and has the unknown ones {sorted(set(content) - names)}"
        )
    return kind(
        **{name: _value(hints[name], content[name], f"{where}.{name}") for name in sorted(names)}
    )


def from_table(
    kind: type[Config], content: dict[str, Any], where: str = ""
) -> tuple[Config | None, list[str]]:
    """Build a configuration from a table that people write, in which fields with defaults may be missing.

    Returns the configuration, or None if there are problems, and all problems, one line each.

    Examples
    --------
    >>> from fedsurf.network.config import GraphConfig
    >>> from_table(GraphConfig, {"kind": "ring"})[0]
    GraphConfig(kind='ring', degree=3, probability=0.1)
    >>> from_table(GraphConfig, {"kind": 3, "degre": 2}, "graph")[1][1]
    "graph.degre: there is no such field; did you mean 'degree'?"
    """
    hints, values = typing.get_type_hints(kind), {}
    known = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    prefix = f"{where}." if where else ""
    problems = []
    for name, field in known.items():
        if name in content:
            values[name], found = _field(hints[name], content[name], prefix + name)
            problems += found
        elif field.default is field.default_factory is dataclasses.MISSING:
            problems.append(f"{prefix}{name}: is missing")
    for name in content.keys() - known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {listed(known)}"
        problems.append(f"{prefix}{name}: there is no such field; {hint}")
    return (None if problems else kind(**values)), problems


def _field(hint: Any, content: Any, where: str) -> tuple[Any, list[str]]:
    """Return the value of a field and its problems; tables inside it have all of theirs."""
    options = typing.get_args(hint)
    if typing.get_origin(hint) is types.UnionType and types.NoneType in options:
        hint = next(option for option in options if option is not types.NoneType)
    if dataclasses.is_dataclass(hint):
        if isinstance(content, dict):
            return from_table(typing.cast(type[Any], hint), content, where)
        return None, [f"{where}: got {content!r}, but it must be a table of fields"]
    if typing.get_origin(hint) is tuple and isinstance(content, list):
        item = typing.get_args(hint)[0]
        found = [_field(item, each, f"{where} #{at}") for at, each in enumerate(content, 1)]
        return tuple(value for value, _ in found), [line for _, lines in found for line in lines]
    try:
        return _value(hint, content, where), []
    except ValueError as error:
        return None, [str(error)]


def differences(left: Any, right: Any, where: str = "") -> list[str]:
    """List the fields in which two plain configurations differ, with both values."""
    if isinstance(left, dict) and isinstance(right, dict):
        return [
            found
            for name in {**left, **right}
            for found in differences(left.get(name), right.get(name), f"{where}.{name}".lstrip("."))
        ]
    return [] if left == right else [f"{where} ({left} there, {right} here)"]


def _value(hint: Any, content: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type[Any], hint), content, where)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if content is None:
            return None
        kinds = [option for option in typing.get_args(hint) if option is not type(None)]
        if len(kinds) == 1:
            return _value(kinds[0], content, where)
        if type(content) not in kinds:
            wanted = " or ".join(option.__name__ for option in kinds)
            raise ValueError(f"{where}: got {content!r}, but it must be {wanted}")
        return content
    if typing.get_origin(hint) is tuple:
        if not isinstance(content, list):
            raise ValueError(f"{where}: got {content!r}, but it must be a list")
        return tuple(_value(typing.get_args(hint)[0], item, where) for item in content)
    if typing.get_origin(hint) is typing.Literal:
        check_option(content, hint, where)
        return content
    if hint is Path and isinstance(content, str):
        return Path(content)
    if hint is float and type(content) is int and abs(content) <= sys.float_info.max:
        return float(content)
    if type(content) is not hint:
        raise ValueError(f"{where}: got {content!r}, but it must be {hint.__name__}")
    return content
