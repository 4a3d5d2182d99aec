"""Digests of a user's own code and objects: different things differ, the same is the same everywhere."""

import functools
import itertools
import os
import subprocess
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn

from fedsurf.algorithms import DGD
from fedsurf.identity import digest
from fedsurf.models import SoftmaxHead
from fedsurf.network import TimeVaryingNetwork
from fedsurf.network.parts import parts


def made(code, name="thing", **names):
    """Run a user's code in a module of its own, and return what it defines."""
    module = ModuleType("users_own")
    vars(module).update(names)
    exec(code, vars(module))  # noqa: S102
    return vars(module)[name]


DIFFERENT = {
    "constants": ("def thing(x): return 2 * x", "def thing(x): return 3 * x"),
    "kinds of constants": ("def thing(): return 1", "def thing(): return 1.0"),
    "signs of zero": ("def thing(): return 0.0", "def thing(): return -0.0"),
    "operations": ("def thing(x, y): return x + y", "def thing(x, y): return x - y"),
    "names of arguments": ("def thing(x, y): return x", "def thing(y, x): return y"),
    "kinds of arguments": ("def thing(x, y): return x", "def thing(x, *, y): return x"),
    "defaults": ("def thing(x=1): return x", "def thing(x=2): return x"),
    "keyword defaults": ("def thing(*, x=1): return x", "def thing(*, x=2): return x"),
    "attributes": ("def thing(x): return x.real", "def thing(x): return x.imag"),
    "functions inside": ("thing = lambda: lambda: 1", "thing = lambda: lambda: 2"),
    "globals": ("N = 1\ndef thing(): return N", "N = 2\ndef thing(): return N"),
    "global lists": ("N = [1]\ndef thing(): return N", "N = [2]\ndef thing(): return N"),
    "functions that are called": (
        "def help(): return 1\ndef thing(): return help()",
        "def help(): return 2\ndef thing(): return help()",
    ),
    "what is closed over": (
        "def make(n): return lambda: n\nthing = make(1)",
        "def make(n): return lambda: n\nthing = make(2)",
    ),
    "where an error is caught": (
        "def thing(f):\n  try:\n    f()\n    f()\n  except ValueError:\n    pass",
        "def thing(f):\n  f()\n  try:\n    f()\n  except ValueError:\n    pass",
    ),
    "methods": (
        "class thing:\n  def f(self): return 1",
        "class thing:\n  def f(self): return 2",
    ),
    "static methods": (
        "class thing:\n  @staticmethod\n  def f(): return 1",
        "class thing:\n  @classmethod\n  def f(cls): return 1",
    ),
    "properties": (
        "class thing:\n  @property\n  def f(self): return 1",
        "class thing:\n  @property\n  def f(self): return 2",
    ),
    "values of a class": ("class thing: n = 1", "class thing: n = 2"),
    "bases": (
        "class A: n = 1\nclass thing(A): pass",
        "class A: n = 2\nclass thing(A): pass",
    ),
    "objects": (
        "class A: pass\nthing = A(); thing.n = 1",
        "class A: pass\nthing = A(); thing.n = 2",
    ),
    "objects of other classes": ("class A: n = 1\nthing = A()", "class A: n = 2\nthing = A()"),
    "slots": (
        "class A: __slots__ = 'n'\nthing = A(); thing.n = 1",
        "class A: __slots__ = 'n'\nthing = A(); thing.n = 2",
    ),
    "what a function remembers": (
        "import functools\n@functools.cache\ndef thing(): return 1",
        "import functools\n@functools.cache\ndef thing(): return 2",
    ),
    "what a decorator keeps": (
        "import functools\nclass A: pass\n"
        "thing = functools.update_wrapper(A(), lambda: 1); thing.n = 1",
        "import functools\nclass A: pass\n"
        "thing = functools.update_wrapper(A(), lambda: 1); thing.n = 2",
    ),
    "fields of arrays": (
        "import numpy as np\nthing = np.zeros(1, [('a', 'i4')])",
        "import numpy as np\nthing = np.zeros(1, [('b', 'i4')])",
    ),
    "attributes of tensors": (
        "import torch\nthing = torch.zeros(1); thing.n = 1",
        "import torch\nthing = torch.zeros(1); thing.n = 2",
    ),
    "what a decorator hides": (
        "import functools\nfrom fedsurf.methods import method_named\n"
        "thing = functools.wraps(method_named)(lambda x: 1)",
        "import functools\nfrom fedsurf.methods import method_named\n"
        "thing = functools.wraps(method_named)(lambda x: 2)",
    ),
}


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_code_that_differs_is_told(pair):
    one, two = map(made, pair)
    assert digest(one) is not None
    assert digest(one) != digest(two)
    assert digest(one) == digest(made(pair[0]))


def test_what_code_uses_of_a_users_module_is_told():
    def with_module(text):
        helpers = ModuleType("helpers")
        exec(text, vars(helpers))  # noqa: S102
        return digest(made("def thing(): return helpers.used()", helpers=helpers))

    first = with_module("def used(): return 1")
    assert first is not None
    assert with_module("def used(): return 1\ndef unused(): pass") == first
    assert with_module("def used(): return 2") != first
    assert with_module("def used(): return 1\ndef __getattr__(name): pass") is None


class Colour(Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    left: int
    right: int = 2


@dataclass(frozen=True)
class Plan:
    steps: int = 3
    sizes: list[float] = field(default_factory=list)

    @functools.cached_property
    def all(self):
        return self.steps


class Mine(DGD):
    def step(self, state, task, network, generator):
        return super().step(state, task, network, generator)


def linear(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 3), nn.ReLU())


def test_objects_that_differ_are_told():
    things = [
        *(1, 1.0, True, "1", b"1", None, (1,), [1], {1}, frozenset([1]), {1: 1}, {1: 2}, ((1,),)),
        *(["ab", "c"], ["a", "bc"], [[], []], [[[]]], OrderedDict({1: 1}), range(2), range(3)),
        *(Colour.RED, Colour.BLUE, Colour, Pair(1), Pair(2), Plan(), Plan(4), Plan(sizes=[1.0])),
        *(torch.zeros(2), torch.zeros(2, 1), torch.zeros(2).double(), torch.eye(2).to_sparse()),
        *(np.zeros(2), np.zeros(2, np.float32), np.float64(1), torch.float32, torch.float64),
        *(DGD, Mine, Mine(SoftmaxHead(2, 2)), Mine(SoftmaxHead(2, 2), 0.5), DGD(SoftmaxHead(2, 2))),
        *(functools.partial(DGD, step_size=1.0), functools.partial(DGD, step_size=2.0)),
        *(linear(), linear(1), torch.relu, torch.tanh, np.exp, len, max, nn.Linear, nn.ReLU()),
        *(Mine.step, DGD.step, Mine(SoftmaxHead(2, 2)).step, torch, np),
    ]
    digests = [digest(thing) for thing in things]
    assert None not in digests
    for (one, left), (two, right) in itertools.combinations(zip(things, digests, strict=True), 2):
        assert left != right, (one, two)


def test_things_that_hold_each_other_come_to_an_end():
    circle: list[object] = []
    circle.append(circle)
    assert digest(circle) is not None
    assert digest(made("def thing(n): return thing(n - 1)")) is not None


@pytest.mark.parametrize(
    "thing",
    [
        threading.Lock(),
        torch.empty(2, device="meta"),
        (number for number in ()),
        made("def thing(): return eval('1')"),
        made("def thing(): return open('file')"),
        made("def thing():\n  from mine import helper\n  return helper()"),
        made("def thing():\n  from .math import helper\n  return helper()"),
        [ModuleType("users_own")],
        made("class A(property): pass\nthing = A(lambda self: 1)"),
        FunctionType(made("thing = lambda: lock").__code__, {"lock": threading.Lock()}),
    ],
    ids=[
        "lock",
        "meta tensor",
        "generator",
        "eval",
        "file",
        "import",
        "relative import",
        "module",
        "property",
        "global lock",
    ],
)
def test_what_cannot_be_told_has_no_digest(thing):
    assert digest(thing) is None


def test_an_import_of_a_library_inside_a_function_is_fine():
    assert digest(made("def thing(x):\n  import math\n  return math.sqrt(x)")) is not None


def chosen(name):
    return name in {"red", "green", "blue", "black", "white"}


def test_a_digest_is_the_same_in_every_process():
    """Sets of text have another order in every process, and objects other places."""
    code = (
        "import test_identity as t; from fedsurf.identity import digest; "
        "print(digest(t.chosen, t.Mine(t.SoftmaxHead(2, 2)), t.Plan, t.Colour.RED, t.linear()))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(found) == 1
    assert found != {"None\n"}


def test_dates_and_conjugates_are_told():
    day = np.array(["2020-01-01"], dtype="M8[D]")
    assert digest(day) == digest(day.copy()) != digest(day + 1)
    number = torch.tensor([1 + 1j])
    assert digest(number.conj()) == digest(torch.tensor([1 - 1j])) != digest(number)
    assert digest(number.conj().imag) == digest(torch.tensor([-1.0]))


def test_a_network_is_what_it_was_after_it_was_used():
    graphs = [nx.path_graph(4), nx.cycle_graph(4)]
    network = TimeVaryingNetwork(graphs, "metropolis")
    before = digest(parts(network))
    for _ in range(3):
        network.mix(torch.ones(4, 2))
    assert digest(parts(network)) == before
    assert digest(parts(TimeVaryingNetwork(graphs[::-1], "metropolis"))) != before
