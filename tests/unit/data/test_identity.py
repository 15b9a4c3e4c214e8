"""A record has one name, whatever file it comes from."""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.data import identity
from mpc_vote.data.dataset import Dataset


def test_equal_inputs_have_one_name_in_any_file_and_order() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20, 3, 2)).astype(np.float32)
    order = rng.permutation(20)
    names = identity.of_content(rows)
    assert (identity.of_content(rows[order]) == names[order]).all()
    assert len(np.unique(names)) == 20
    assert names.dtype.itemsize == identity.ID_BYTES


def test_the_two_zeros_of_a_float_are_one_and_shapes_and_types_tell_inputs_apart() -> None:
    zeros = np.zeros((1, 4), np.float32)
    (name,) = identity.of_content(zeros)
    assert identity.of_content(-zeros)[0] == name
    assert identity.of_content(zeros.reshape(1, 2, 2))[0] != name
    assert identity.of_content(np.zeros((1, 16), np.uint8))[0] != name


def test_an_identifier_is_no_content() -> None:
    text = "\0" * 8
    content = identity.of_content(np.zeros((1, 8), np.uint8))
    assert identity.of_identifiers([text])[0] != content[0]
    assert identity.of_identifiers(["a", "b", "a"])[0] == identity.of_identifiers(["a"])[0]


def test_a_data_set_knows_its_records_by_identifiers_or_by_content_without_labels() -> None:
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    one = Dataset("one", x, np.array([0, 1, 0]), 2)
    other = Dataset("other", x, np.array([1, 1, 1]), 2)
    assert (one.identities() == other.identities()).all()
    named = Dataset("named", x, one.y, 2, identity.of_identifiers(["p", "q", "r"]))
    assert (named.take(np.array([2, 0])).identities() == named.identities()[[2, 0]]).all()
    with pytest.raises(ValueError, match="3 points but 2 names"):
        Dataset("short", x, one.y, 2, named.identities()[:2])
