"""What tells things of a user's own from each other: a digest of all that they are made of.

The cache of a study needs it for methods and networks that are not the package's. Of a function these
are its code with its constants, its defaults, what it closes over and the globals that it names; of a
class its bases and all that its body defines; of an object its class and its state. What Python, fedsurf
and its libraries define is known by its name. Where anything cannot be told from others there is no digest.
"""

import builtins
import dis
import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor

_LIBRARIES = {"fedsurf", "networkx", "numpy", "scipy", "sklearn", "torch"}
_STANDARD = Path(sysconfig.get_path("stdlib")).resolve()
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range)
_DESCRIPTORS = (
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
_CACHED = type(lru_cache(len))
_BLIND = {"__import__", "compile", "eval", "exec", "globals", "open"}
"""What code may do anything with."""
_NOT_OF_A_BODY = {
    "__abstractmethods__",
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__doc__",
    "__firstlineno__",
    "__orig_bases__",
    "__parameters__",
    "__static_attributes__",
    "_abc_impl",
}
"""What a class has besides: comments, places in files, and what follows from the rest."""


def digest(*things: object) -> str | None:
    """Return a digest of some things, the same in every process, or None where one cannot be told.

    That is where something reads what is not in it: `import` of a user's modules inside a function, `eval`
    and the like, files; and where an object does not show its state, as a lock or a generator does not.
    """
    walk = _Walk()
    try:
        walk.visit(things)
    except (_UntoldError, RecursionError):
        return None
    return walk.hexdigest()


class _UntoldError(Exception):
    """Something cannot be told from others."""


class _Walk:
    """Goes through all that a thing is made of, and says each piece once."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._seen: dict[Any, int] = {}
        self._kept: list[object] = []  # as long as a thing is there, no other one has its id

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def visit(self, thing: object) -> None:
        """Say a thing, and what it is made of."""
        kind = type(thing)
        if kind in _PLAIN:
            self._say(kind.__name__, repr(thing))
        elif kind is tuple:
            self._all("tuple", thing)
        elif isinstance(thing, CodeType):
            self._code(thing)
        elif _is_known(thing):
            self._say("known", *_address(thing))
        elif not self._was_seen(id(thing), thing):
            self._parts(thing)

    def _parts(self, thing: Any) -> None:
        kind = type(thing)
        if kind in (list, dict, MappingProxyType):
            self._all(kind.__name__, thing if kind is list else list(thing.items()))
        elif kind in (set, frozenset):  # their order is another one in every process
            self._say(kind.__name__, *sorted(_alone(each) for each in thing))
        elif isinstance(thing, Tensor):
            self._tensor(thing)
        elif kind is np.ndarray and not thing.dtype.hasobject:
            self._bytes("array", f"{thing.dtype!r}{thing.shape}", np.ascontiguousarray(thing))
        elif isinstance(thing, type):
            self._class(thing)
        elif isinstance(thing, FunctionType):
            self._function(thing)
        elif kind in (MethodType, staticmethod, classmethod):
            self._all(kind.__name__, (thing.__func__, getattr(thing, "__self__", None)))
        elif kind is property:
            self._all("property", (thing.fget, thing.fset, thing.fdel))
        elif kind is cached_property:
            self._all("cached_property", (thing.func, thing.attrname))
        elif isinstance(thing, _DESCRIPTORS):
            self._all(kind.__name__, (thing.__objclass__, thing.__name__))
        elif isinstance(thing, BuiltinFunctionType):
            self._all("builtin", (thing.__self__, thing.__qualname__))
        elif kind is _CACHED:
            self._all("cached", (thing.__wrapped__, vars(thing)))
        elif isinstance(thing, ModuleType):
            self._module(thing, None)
        else:
            self._object(thing)

    def _function(self, function: FunctionType) -> None:
        cells = function.__closure__ or ()
        around = [_inside(cell) for cell in cells]
        self._all("function", (function.__code__, function.__defaults__, function.__kwdefaults__))
        self._all("around", (around, vars(function)))
        used = list(_codes(function.__code__))
        names = frozenset(name for code in used for name in code.co_names)
        for name in sorted({name for code in used for name in _globals(code)}):
            self._say("global", name)
            value = function.__globals__.get(name, vars(builtins).get(name))
            if isinstance(value, ModuleType):
                self._module(value, names)
            elif name in function.__globals__:
                self.visit(value)
            elif name in _BLIND:
                raise _UntoldError

    def _module(self, module: ModuleType, names: frozenset[str] | None) -> None:
        """Say what code with these names may use of a module; of a user's own they must be known."""
        if _is_library(module.__name__):
            self._say("module", module.__name__)
        elif names is None or "__getattr__" in vars(module):
            raise _UntoldError
        elif not self._was_seen((id(module), names), module):
            for name in sorted(names & vars(module).keys()):
                self._say("of", name)
                value = vars(module)[name]
                if isinstance(value, ModuleType):
                    self._module(value, names)
                else:
                    self.visit(value)

    def _class(self, kind: type) -> None:
        body = {name: value for name, value in vars(kind).items() if name not in _NOT_OF_A_BODY}
        own = [(name, body[name]) for name in body if name not in ("__dict__", "__weakref__")]
        self._all("class", (kind.__name__, type(kind), kind.__bases__, own))

    def _code(self, code: CodeType) -> None:
        arguments = code.co_argcount + code.co_kwonlyargcount
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_varnames[:arguments], code.co_names, code.co_freevars, code.co_cellvars)
        jumps = getattr(code, "co_exceptiontable", b"")
        self._all("code", (code.co_code, jumps, shape, names, code.co_consts))

    def _tensor(self, tensor: Tensor) -> None:
        self._all("tensor", (type(tensor), vars(tensor), str(tensor.layout), tensor.requires_grad))
        if tensor.is_meta:
            raise _UntoldError
        if tensor.layout is torch.sparse_coo:
            whole = tensor.detach().coalesce()
            self._all("sparse", (tuple(whole.shape), whole.indices(), whole.values()))
        elif tensor.layout is torch.strided:
            plain = tensor.detach().resolve_conj().resolve_neg()
            flat = plain.cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
            about = f"{tensor.dtype}{tuple(tensor.shape)}"
            self._bytes("values", about, flat.view(torch.uint8).numpy())
        else:
            raise _UntoldError

    def _object(self, thing: object) -> None:
        """Say an object by its state, as copies of it would be made."""
        try:
            state = thing.__reduce_ex__(2)
        except Exception as error:
            raise _UntoldError from error
        if isinstance(state, str):  # a name, of something that is not known by it
            raise _UntoldError
        lists = (list(part) if isinstance(part, Iterator) else part for part in state)
        self._all("object", (type(thing), *lists))

    def _was_seen(self, key: object, thing: object) -> bool:
        if key in self._seen:
            self._say("again", str(self._seen[key]))
            return True
        self._seen[key] = len(self._seen)
        self._kept.append(thing)
        return False

    def _all(self, kind: str, things: Any) -> None:
        self._say(kind, str(len(things)))
        for each in things:
            self.visit(each)

    def _bytes(self, kind: str, about: str, values: Any) -> None:
        self._say(kind, about, str(values.nbytes))
        self._hash.update(values.tobytes())

    def _say(self, *words: str) -> None:
        for word in (str(len(words)), *words):  # with its length, so that none runs into the next
            spelt = word.encode(errors="surrogatepass")
            self._hash.update(f"{len(spelt)}:".encode() + spelt)


def _alone(thing: object) -> str:
    walk = _Walk()
    walk.visit(thing)
    return walk.hexdigest()


def _inside(cell: Any) -> object:
    try:
        return [cell.cell_contents]
    except ValueError:  # nothing was put into it yet
        return None


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield code and all code inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _globals(code: CodeType) -> Iterator[str]:
    """Yield the globals that code names; what it imports by itself must be of Python or the libraries."""
    steps = list(dis.get_instructions(code))
    for at, step in enumerate(steps):
        if "GLOBAL" in step.opname or step.opname == "LOAD_NAME":
            yield str(step.argval)
        if step.opname == "IMPORT_NAME":
            level = steps[at - 2].argval
            if level != 0 or not _is_library(str(step.argval)):
                raise _UntoldError


def _is_library(module: str) -> bool:
    """Whether a module is Python's, fedsurf's or of one of its libraries."""
    top = module.partition(".")[0]
    if top in _LIBRARIES:
        return True
    if top not in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(top), "__file__", None)  # one's own file may have such a name
    return file is None or Path(file).resolve().is_relative_to(_STANDARD)


def _address(thing: Any) -> tuple[str, str]:
    """Return the module and the name under which a class, a function or a constant should be."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    if isinstance(thing, FunctionType):  # whatever a decorator made it look like
        module = thing.__globals__.get("__name__", "")
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    if name is None and isinstance(thing, torch.dtype):
        name = str(thing).removeprefix("torch.")
    return str(module), str(name)


def _is_known(thing: object) -> bool:
    """Whether something is to be found under its name in Python, fedsurf or one of its libraries."""
    module, name = _address(thing)
    if not _is_library(module):
        return False
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found is thing
