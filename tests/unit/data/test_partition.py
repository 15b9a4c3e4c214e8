"""Splits are disjoint, repeatable and refused when impossible; part files are safe to read."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpc_vote.data import (
    Dataset,
    Partition,
    load_part,
    save_part,
    split_iid,
    split_skewed,
)
from mpc_vote.data.assignment import deal_by_class
from mpc_vote.data.partition import Domain, hand_out, split_domains, split_public


def _numbered(count: int, classes: int = 10) -> Dataset:
    """Each point carries its own number, so that parts can be traced back."""
    x = np.arange(count, dtype=np.float32).reshape(count, 1)
    return Dataset("numbered", x, np.arange(count) % classes, classes)


def _skewed(dataset: Dataset, agents: int, public: int, test: int, seed: int) -> Partition:
    return split_skewed(dataset, agents, public, test, seed, holders=min(4, agents))


Split = Callable[[Dataset, int, int, int, int], Partition]
both_splits = pytest.mark.parametrize("split", [split_iid, _skewed])


@both_splits
def test_parts_cover_the_data_without_overlap(split: Split) -> None:
    made = split(_numbered(1000), 8, 100, 60, 3)
    assert (len(made.private), len(made.public), len(made.test)) == (8, 100, 60)
    parts = [*made.private, made.public, made.test]
    numbers = np.concatenate([part.x[:, 0] for part in parts])
    assert sorted(numbers.tolist()) == list(range(1000))
    for part in parts:
        assert (part.y == part.x[:, 0].astype(int) % 10).all()


@both_splits
def test_a_split_depends_on_its_seed_only(split: Split) -> None:
    first, again, other = (split(_numbered(500), 5, 50, 50, seed) for seed in (7, 7, 8))
    for one, two in zip(first.private, again.private, strict=True):
        assert np.array_equal(one.x, two.x)
    assert not np.array_equal(first.public.x, other.public.x)


def test_iid_parts_differ_in_size_by_one_at_most() -> None:
    sizes = [len(part) for part in split_iid(_numbered(101), 7, 10, 10, 0).private]
    assert max(sizes) - min(sizes) <= 1


def test_skewed_classes_have_the_wanted_number_of_holders() -> None:
    made = split_skewed(_numbered(2000), 8, 100, 100, 0, holders=4)
    held = np.array([np.bincount(part.y, minlength=10) > 0 for part in made.private])
    assert (held.sum(axis=0) == 4).all()
    assert (held.sum(axis=1) == 5).all()


@both_splits
@pytest.mark.parametrize(
    ("agents", "public", "test", "seed", "message"),
    [
        (0, 5, 5, 0, "agents|agent"),
        (2, 0, 5, 0, "public must be at least 1"),
        (2, 5, 0, 0, "test must be at least 1"),
        (2, 5, 5, -1, "seed"),
        (11, 5, 5, 0, "too few"),
        (2, 15, 5, 0, "too few"),
    ],
)
def test_impossible_splits_are_refused(
    split: Split, agents: int, public: int, test: int, seed: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        split(_numbered(20), agents, public, test, seed)


@pytest.mark.parametrize(("holders", "message"), [(0, "held by"), (9, "held by"), (1, "raise")])
def test_impossible_holders_are_refused(holders: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_skewed(_numbered(200, classes=4), 8, 10, 10, 0, holders)


def test_a_deal_is_handed_out_as_named_parts() -> None:
    dataset = _numbered(200)
    deal = deal_by_class(dataset.y, 4, 30, 6, 0)
    parts = hand_out(dataset, deal)
    assert [part.name for part in parts] == [f"numbered/agent-{number}" for number in range(4)]
    for part, rows in zip(parts, deal, strict=True):
        assert np.array_equal(part.x[:, 0], rows)
        assert len(np.unique(part.y)) == 6


def _two_domains(seed: int) -> tuple[Dataset, ...]:
    street = replace(_numbered(100), name="street")
    paper = replace(_numbered(50), name="paper", x=_numbered(50).x + 1000)
    return split_domains([Domain(street, 14, 7), Domain(paper, 3)], seed)


def test_each_agent_holds_one_domain_only() -> None:
    parts = _two_domains(0)
    assert [len(part) for part in parts] == [7] * 14 + [17, 17, 16]
    assert [part.name for part in parts[12:15]] == [
        "street/agent-12",
        "street/agent-13",
        "paper/agent-0",
    ]
    held = np.concatenate([part.x[:, 0] for part in parts])
    assert len(np.unique(held)) == 14 * 7 + 50
    assert all((part.x >= 1000).all() == part.name.startswith("paper") for part in parts)


def test_domains_depend_on_their_seed_only() -> None:
    first, again, other = (_two_domains(seed) for seed in (7, 7, 8))
    assert all(np.array_equal(one.x, two.x) for one, two in zip(first, again, strict=True))
    assert not np.array_equal(first[0].x, other[0].x)
    assert not np.array_equal(first[-1].x, other[-1].x)


def test_impossible_domains_are_refused() -> None:
    few = _numbered(20)
    with pytest.raises(ValueError, match="lower agents or size"):
        split_domains([Domain(few, 3, 7)], 0)
    with pytest.raises(ValueError, match="held twice"):
        split_domains([Domain(few, 1, 5), Domain(few, 1, 5)], 0)
    with pytest.raises(ValueError, match="seed"):
        split_domains([Domain(few)], -1)


@given(st.integers(2, 60), st.integers(1, 59), st.integers(0, 2**32))
def test_public_points_and_test_points_are_the_whole(count: int, public: int, seed: int) -> None:
    dataset = _numbered(count)
    if public >= count:
        with pytest.raises(ValueError, match=f"from 1 to {count - 1}, got {public}"):
            split_public(dataset, public, seed)
        return
    queries, test = split_public(dataset, public, seed)
    assert (queries.name, test.name) == ("numbered/public", "numbered/test")
    assert len(queries) == public
    assert sorted([*queries.x[:, 0], *test.x[:, 0]]) == list(range(count))
    again = split_public(dataset, public, seed)[0]
    assert np.array_equal(queries.x, again.x)


def test_public_points_differ_by_seed_and_are_at_least_one() -> None:
    one, two = (split_public(_numbered(100), 50, seed)[0] for seed in (0, 1))
    assert not np.array_equal(one.x, two.x)
    with pytest.raises(ValueError, match="got 0"):
        split_public(_numbered(100), 0, 0)
    with pytest.raises(ValueError, match="seed"):
        split_public(_numbered(100), 5, -1)


def test_a_part_survives_its_file(tmp_path: Path) -> None:
    part = split_iid(_numbered(60), 2, 10, 10, 0).private[1]
    path = tmp_path / "agent.data"
    save_part(path, part)
    read = load_part(path)
    assert (read.name, read.classes) == (part.name, part.classes)
    assert np.array_equal(read.x, part.x)
    assert np.array_equal(read.y, part.y)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.npz"):
        load_part(tmp_path / "gone.npz")


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


def _pickled() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.array([{}], dtype=object), allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content", [b"", b"not a zip", b"PK\x03\x04 cut short", _npy(), _pickled()]
)
def test_a_file_that_is_no_plain_npz_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"odd\.npz: not a readable \.npz"):
        load_part(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": None}, "misses y"),
        ({"name": None, "classes": None}, "misses name, classes"),
        ({"x": np.zeros((4, 2))}, "float32"),
        ({"x": np.full((4, 2), np.nan, np.float32)}, "NaN"),
        ({"y": np.zeros(3, np.int64)}, "4 points but 3 labels"),
        ({"y": np.array([0, 1, 2, 3])}, "label 3"),
        ({"classes": np.array([3])}, "one integer"),
        ({"classes": np.array(3.0)}, "one integer"),
        ({"name": np.array(7)}, "one string"),
    ],
)
def test_a_malformed_part_is_refused_with_its_reason(
    tmp_path: Path, change: dict[str, np.ndarray | None], message: str
) -> None:
    arrays: dict[str, np.ndarray | None] = {
        "name": np.array("part"),
        "x": np.zeros((4, 2), np.float32),
        "y": np.zeros(4, np.int64),
        "classes": np.array(3),
    }
    kept = {key: value for key, value in (arrays | change).items() if value is not None}
    path = tmp_path / "bad.npz"
    np.savez(path, **kept)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        load_part(path)
