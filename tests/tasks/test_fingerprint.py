"""What a run remembers of its data tells other data under the same name, and no machine from another."""

import json
from dataclasses import replace

import pytest
import torch

from fedsurf.tasks.features import Features
from fedsurf.tasks.fingerprint import fingerprint, other_than

RANDOM = torch.Generator().manual_seed(0)
MEANS = torch.randn(3, 6, generator=RANDOM)


def part(size):
    y = torch.arange(size) % 3
    return MEANS[y] + torch.randn(size, 6, generator=RANDOM), y


FEATURES = Features("mine", *part(90), *part(30), 3)
STORED = json.loads(json.dumps(fingerprint(FEATURES)))


def changed(change, parts=("train_x", "test_x")):
    return replace(FEATURES, **{name: change(getattr(FEATURES, name)) for name in parts})


def swapped(y):
    return torch.tensor([1, 0, 2])[y]


def flipped_once(x):
    return x * torch.tensor([1, 1, 1, -1, 1, 1])


SIGNS = "the signs, the order or the means of the features of its {} part"


@pytest.mark.parametrize("parts", [["train_x", "test_x"], ["test_x"]])
@pytest.mark.parametrize(
    "change",
    [torch.neg, flipped_once, lambda x: x.flip(1), lambda x: x[:, [0, 1, 3, 2, 4, 5]]],
    ids=["negated", "one feature negated", "turned round", "two features swapped"],
)
def test_signs_and_the_order_of_features_are_told(change, parts):
    found = other_than(STORED, fingerprint(changed(change, parts)))
    assert found == SIGNS.format(parts[0].removesuffix("_x"))


def test_swapped_classes_of_the_same_size_and_length_are_told():
    lengths = FEATURES.train_x.norm(dim=1, keepdim=True)
    alike = replace(FEATURES, train_x=FEATURES.train_x / lengths)
    other = replace(alike, train_y=swapped(alike.train_y))
    assert other_than(fingerprint(alike), fingerprint(other)) == SIGNS.format("train")


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e6])
def test_the_rounding_of_other_machines_is_not(size):
    random = torch.Generator().manual_seed(1)

    def rounded(x):
        return x * size * (1 + 1e-4 * torch.randn(x.shape, generator=random))

    ours = changed(lambda x: x * size)
    assert other_than(fingerprint(ours), fingerprint(changed(rounded))) is None
    assert other_than(fingerprint(ours), fingerprint(changed(lambda x: 1.0001 * size * x))) is None


def test_components_that_hardly_vary_may_turn():
    small = torch.tensor([1.0, 1, 1, 1, 1e-5, 1e-5])
    turned = changed(lambda x: (x * small)[:, [0, 1, 2, 3, 5, 4]])
    assert other_than(fingerprint(changed(lambda x: x * small)), fingerprint(turned)) is None


def test_a_class_without_examples_and_features_that_are_all_zero_are_fine():
    nothing = replace(changed(torch.zeros_like), classes=4)
    assert other_than(fingerprint(nothing), fingerprint(nothing)) is None


def old(stored):
    """Return a fingerprint as it was stored before it had projections."""
    parts = {
        name: {key: value for key, value in stored[name].items() if key != "projections"}
        for name in ("train", "test")
    }
    return {**stored, **parts}


def test_a_fingerprint_from_before_is_compared_by_what_it_has():
    assert "projections" not in old(STORED)["train"]
    assert other_than(old(STORED), fingerprint(FEATURES)) is None
    assert other_than(old(STORED), fingerprint(changed(torch.neg))) is None
    louder = fingerprint(changed(lambda x: 2 * x))
    assert other_than(old(STORED), louder) == "the features of its train part"


@pytest.mark.parametrize("bad", [None, [], [[0.0] * 8] * 2, [[0.0] * 7] * 3, [["a"] * 8] * 3])
def test_projections_that_are_none_are_damaged(bad):
    spoilt = {**STORED, "train": {**STORED["train"], "projections": bad}}
    found = other_than(spoilt, fingerprint(FEATURES))
    assert found == "what is stored of it, which is damaged"
