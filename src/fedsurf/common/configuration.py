"""Conversion of configurations, which are frozen dataclasses, to plain data for JSON and back."""

import dataclasses
import sys
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from fedsurf.common.checks import check_option

Config = TypeVar("Config")


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

    Unknown and missing fields raise a ValueError that names them; `where` names the configuration in
    errors.
    """
    if not isinstance(content, dict):
        raise ValueError(f"{where}: got {content!r}, but it must be a table of fields")  # noqa: TRY004
    hints = typing.get_type_hints(kind)
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if set(content) != names:
        raise ValueError(
            f"{where}: lacks the fields {sorted(names - set(content))} "
            f"and has the unknown ones {sorted(set(content) - names)}"
        )
    return kind(
        **{name: _value(hints[name], content[name], f"{where}.{name}") for name in sorted(names)}
    )


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
        (hint,) = (option for option in typing.get_args(hint) if option is not type(None))
        return _value(hint, content, where)
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
