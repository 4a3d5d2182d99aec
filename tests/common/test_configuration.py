"""Configurations to JSON and back."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsurf.common.configuration import from_dict, from_table, to_dict
from fedsurf.evaluation.config import ExperimentConfig
from fedsurf.network import GraphConfig, NetworkConfig
from fedsurf.surf import DescentConfig, SurfConfig
from fedsurf.tasks.config import FeatureConfig, TaskConfig
from fedsurf.unrolled import UDGDConfig


@dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    count: int = 3
    share: float | None = None
    folder: Path = Path("here")
    maybe: Path | None = None
    sizes: tuple[int, ...] = (1, 2)
    name: str = "x"
    flag: bool = False


@dataclass(frozen=True)
class Required:
    rate: float


def through_json(config):
    return from_dict(type(config), json.loads(json.dumps(to_dict(config))))


outers = st.builds(
    Outer,
    inner=st.builds(Inner, st.floats(allow_nan=False), st.sampled_from(["a", "b"])),
    count=st.integers(),
    share=st.none() | st.floats(allow_nan=False),
    folder=st.text("abc", min_size=1).map(Path),
    maybe=st.none() | st.just(Path("/tmp/x")),  # noqa: S108
    sizes=st.lists(st.integers(), max_size=3).map(tuple),
    name=st.text(),
    flag=st.booleans(),
)


@given(outers)
def test_every_configuration_survives_json(config):
    again = through_json(config)
    assert again == config
    assert type(again.folder) is type(config.folder)
    assert type(again.sizes) is tuple


def test_the_configuration_of_an_experiment_survives_json():
    config = ExperimentConfig(
        data=FeatureConfig(source="digits", folder=Path("/data/x"), components=None),
        task=TaskConfig(agents=7, fewest_train_examples=3, partition="dirichlet", alpha=0.7),
        network=NetworkConfig(GraphConfig("star"), "metropolis", 4),
        optimizer=UDGDConfig(layers=3, activation="tanh"),
        surf=SurfConfig(final_learning_rate=1e-4, descent=DescentConfig(constrained=False)),
        seed=5,
    )
    assert through_json(config) == config
    assert through_json(ExperimentConfig()) == ExperimentConfig()
    assert to_dict(config)["data"]["folder"] == "/data/x"


def test_an_option_outside_a_literal_names_the_options():
    content = {**to_dict(NetworkConfig()), "calling": "x"}
    with pytest.raises(ValueError, match=r"calling: got 'x', but it must be 'random' or 'in-turn'"):
        from_dict(NetworkConfig, content)


def test_a_whole_number_may_stand_for_a_float_and_nothing_else_may():
    content = to_dict(Outer())
    rate = from_dict(Outer, {**content, "inner": {"rate": 1, "kind": "a"}}).inner.rate
    assert rate == 1.0
    assert type(rate) is float


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": "3"}, r"^configuration\.count: got '3'.* int"),
        ({"count": 3.5}, r"^configuration\.count: got 3\.5.* int"),
        ({"count": True}, r"^configuration\.count: got True.* int"),
        ({"count": None}, r"^configuration\.count: got None.* int"),
        ({"flag": 1}, r"^configuration\.flag: got 1.* bool"),
        ({"name": 5}, r"^configuration\.name: got 5.* str"),
        ({"share": "much"}, r"^configuration\.share: got 'much'.* float"),
        ({"share": False}, r"^configuration\.share: got False.* float"),
        ({"share": 10**400}, r"^configuration\.share: got 10{400}, but it must be float"),
        ({"inner": {"rate": "x", "kind": "a"}}, r"^configuration\.inner\.rate: got 'x'.* float"),
        ({"inner": {"rate": 1.0, "kind": 1}}, r"^configuration\.inner\.kind: got 1"),
        (
            {"inner": {"rate": 1.0, "kind": "c"}},
            r"^configuration\.inner\.kind: got 'c'.* 'a' or 'b'",
        ),
        ({"inner": {"rate": 1.0}}, r"^configuration\.inner: lacks the fields \['kind'\]"),
        ({"inner": [1.0, "a"]}, r"^configuration\.inner: got \[1\.0, 'a'\].*table"),
        ({"inner": None}, r"^configuration\.inner: got None.*table"),
        ({"folder": 5}, r"^configuration\.folder: got 5.* Path"),
        ({"maybe": 5}, r"^configuration\.maybe: got 5.* Path"),
        ({"sizes": 5}, r"^configuration\.sizes: got 5.* list"),
        ({"sizes": "12"}, r"^configuration\.sizes: got '12'.* list"),
        ({"sizes": [1, "2"]}, r"^configuration\.sizes: got '2'.* int"),
        ({"surplus": 1}, r"^configuration: .*unknown ones \['surplus'\]"),
    ],
)
def test_values_that_do_not_fit_name_the_field(change, message):
    with pytest.raises(ValueError, match=message):
        from_dict(Outer, {**to_dict(Outer()), **change})


def test_a_missing_field_is_named_even_though_it_has_a_default():
    content = to_dict(Outer())
    del content["count"]
    with pytest.raises(ValueError, match=r"^configuration: lacks the fields \['count'\]"):
        from_dict(Outer, content)


def test_a_field_that_was_added_later_may_be_missing():
    content = to_dict(NetworkConfig(wire="int8"))
    assert from_dict(NetworkConfig, content).wire == "int8"
    del content["wire"]
    assert from_dict(NetworkConfig, content) == NetworkConfig()


@pytest.mark.parametrize("content", [None, 3, [1], "text"])
def test_content_must_be_a_table(content):
    with pytest.raises(ValueError, match=r"^configuration: got .*table of fields"):
        from_dict(Outer, content)


def test_different_configurations_differ_as_plain_tables():
    assert to_dict(replace(Outer(), count=4)) != to_dict(Outer())


def test_a_table_of_a_person_may_lack_fields_and_tells_all_its_problems():
    assert from_table(Required, {}) == (None, ["rate: is missing"])
    found, problems = from_table(Outer, {"inner": {"rate": 2, "kind": "a"}, "sizes": [1, 2]})
    assert problems == []
    assert (found.inner.rate, found.sizes, found.count) == (2.0, (1, 2), Outer().count)
    content = {"inner": {"kind": "c"}, "sizes": [1, "2"], "flg": True, "count": "x"}
    found, problems = from_table(Outer, content, "file")
    assert found is None
    assert sorted(line.partition(":")[0] for line in problems) == [
        "file.count",
        "file.flg",
        "file.inner.kind",
        "file.sizes #2",
    ]
    assert "file.flg: there is no such field; did you mean 'flag'?" in problems
