"""Answers are signed by who gives them, and nobody who hands them on can change them."""

import numpy as np
import pytest
from federations import a_federation

from fedsurf.network.engines.arrivals import Arrivals
from fedsurf.network.engines.config import SITE_FILES
from fedsurf.network.engines.keys import make_keys
from fedsurf.network.engines.messages import Kind, Message, RefusedError, Slot
from fedsurf.network.engines.signatures import CertificateSignatures

DIGEST = bytes(16)
NAMES = ["clinic-1", "clinic-2", "clinic-3", "clinic-4"]


def signatures(folder, name):
    key, certificate, authority = (folder / name / file for file in SITE_FILES)
    return CertificateSignatures(authority, certificate, key)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signatures")
    make_keys(a_federation(), folder / "own")
    make_keys(a_federation(), folder / "foreign")
    return folder


def answer(sender, value, gone=()):
    values = np.full((1, 3), value, np.float32)
    return Message(Kind.ANSWER, sender, Slot(0, 0), values, frozenset(gone)).encoded(DIGEST)


def test_what_is_signed_is_opened_with_the_signers_name(keys):
    raw = signatures(keys / "own", "clinic-2").signed(b"rows")
    assert signatures(keys / "own", "clinic-3").opened(raw) == (b"rows", "clinic-2")


@pytest.mark.parametrize("change", ["message", "chain", "signature", "sizes", "cut", "nothing"])
def test_what_was_changed_is_refused(keys, change):
    raw = bytearray(signatures(keys / "own", "clinic-2").signed(b"rows"))
    if change in ("cut", "nothing"):
        raw = raw[: 30 * (change == "cut")]
    else:
        raw[{"message": 0, "chain": 60, "signature": -20, "sizes": -1}[change]] ^= 1
    with pytest.raises(RefusedError):
        signatures(keys / "own", "clinic-3").opened(bytes(raw))


def test_a_certificate_of_another_authority_is_refused(keys):
    raw = signatures(keys / "foreign", "clinic-2").signed(b"rows")
    with pytest.raises(RefusedError, match="not trusted"):
        signatures(keys / "own", "clinic-3").opened(raw)


def test_a_neighbour_cannot_answer_for_another_nor_replace_its_answer(keys):
    one, two = (signatures(keys / "own", f"clinic-{n}") for n in (1, 2))
    here = Arrivals(NAMES, [1, 3], DIGEST, 2**20, signatures=signatures(keys / "own", "clinic-3"))
    true = one.signed(answer(0, 1.0))
    assert here.receive("clinic-2", true).values.tolist() == [[1.0] * 3]
    assert here.receive("clinic-2", two.signed(answer(0, 666.0, gone=[3]))) is None
    assert here.receive("clinic-2", answer(0, 666.0, gone=[3])) is None
    assert here.answers(Slot(0, 0))[0].values.tolist() == [[1.0] * 3]
    assert set(here.refused["clinic-2"]) == {"another's name", "not signed"}


def test_an_answer_is_handed_on_again_only_if_its_sender_misses_more(keys):
    here = Arrivals(NAMES, [1, 3], DIGEST, 2**20)
    assert here.receive("clinic-2", answer(1, 1.0, gone=[0])) is not None
    assert here.receive("clinic-2", answer(1, 1.0, gone=[2])) is None
    assert here.receive("clinic-2", answer(1, 1.0, gone=[0, 2])) is not None


def test_the_answers_that_one_can_make_another_keep_are_bounded():
    here = Arrivals(NAMES, [1, 3], DIGEST, 2**16)
    large = np.zeros((1, 2**14 - 100), np.float32)
    for part in range(16):
        message = Message(Kind.ANSWER, 0, Slot(0, 0, part), large).encoded(DIGEST)
        here.receive("clinic-2", message)
    assert here.refused["clinic-2"] == {"too many at once": 11}
