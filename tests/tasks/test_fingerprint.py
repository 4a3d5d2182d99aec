"""Fingerprints of features: they distinguish data, and not the rounding of machines."""

import json
from dataclasses import replace

import pytest
import torch

from fedsurf.tasks.features import Features, fingerprint, fingerprint_difference

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
def test_signs_and_the_order_of_features_are_found(change, parts):
    found = fingerprint_difference(STORED, fingerprint(changed(change, parts)))
    assert found == SIGNS.format(parts[0].removesuffix("_x"))


def test_swapped_classes_of_the_same_size_and_length_are_found():
    lengths = FEATURES.train_x.norm(dim=1, keepdim=True)
    alike = replace(FEATURES, train_x=FEATURES.train_x / lengths)
    other = replace(alike, train_y=swapped(alike.train_y))
    assert fingerprint_difference(fingerprint(alike), fingerprint(other)) == SIGNS.format("train")


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e6])
def test_the_rounding_of_other_machines_is_no_difference(size):
    random = torch.Generator().manual_seed(1)

    def rounded(x):
        return x * size * (1 + 1e-4 * torch.randn(x.shape, generator=random))

    ours = changed(lambda x: x * size)
    assert fingerprint_difference(fingerprint(ours), fingerprint(changed(rounded))) is None
    assert (
        fingerprint_difference(fingerprint(ours), fingerprint(changed(lambda x: 1.0001 * size * x)))
        is None
    )


def test_components_that_hardly_vary_may_turn():
    small = torch.tensor([1.0, 1, 1, 1, 1e-5, 1e-5])
    turned = changed(lambda x: (x * small)[:, [0, 1, 2, 3, 5, 4]])
    assert (
        fingerprint_difference(fingerprint(changed(lambda x: x * small)), fingerprint(turned))
        is None
    )


def test_a_class_without_examples_and_features_that_are_all_zero_are_fine():
    nothing = replace(changed(torch.zeros_like), classes=4)
    assert fingerprint_difference(fingerprint(nothing), fingerprint(nothing)) is None
