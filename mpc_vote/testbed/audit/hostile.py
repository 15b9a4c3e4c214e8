"""Neighbouring data sets and the queries that tell most about their difference.

Whoever asks is taken to know all records but one, and to choose queries as badly as a float32
allows: far beyond every record, too small to square, equal to records, halfway between them, all
alike, or alone. Data sets are what their owners should not have but may: ties, duplicates, fewer
records than neighbours are asked for, a single class, numbers of any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mpc_vote.data.dataset import Dataset, FloatArray, LabelArray, PointArray
from mpc_vote.tasks import Input
from mpc_vote.testbed.audit.rows import nearest_rows, usual_rows

LARGEST = float(np.finfo(np.float32).max)
SIZES = (LARGEST, 1e30, 2e19, 1e19, 4e18, 1e18)
_BLOCK = 64
TINY = (1e-45, 1e-38, 1e-21)


@dataclass(frozen=True, eq=False)
class AdjacentDatasets:
    """Two data sets that differ in one record, and the points that record has in them."""

    one: Dataset
    other: Dataset
    changed: PointArray


@dataclass(frozen=True)
class DataShape:
    """What data sets are made of: points of this shape, k neighbours, and attributes or classes.

    With a `schema` points are rows of a task's inputs, the hostile ones, too.
    """

    shape: tuple[int, ...]
    classes: int
    k: int
    multi_label: bool = False
    schema: Input | None = None

    def points(self, rng: np.random.Generator, count: int) -> PointArray:
        """Points of usual size."""
        if self.schema is not None:
            return usual_rows(self.schema, rng, count)
        return rng.normal(size=(count, *self.shape)).astype(np.float32)

    def labels(self, rng: np.random.Generator, count: int) -> LabelArray:
        """A class for each point, or its attributes."""
        if self.multi_label:
            return rng.integers(0, 2, (count, self.classes))
        return rng.integers(0, self.classes, count)

    def dataset(self, x: PointArray, y: LabelArray) -> Dataset:
        return Dataset("audited", self.allowed(x), y, self.classes)

    def allowed(self, points: PointArray) -> PointArray:
        """Points as far as they can be sent."""
        return points if self.schema is None else nearest_rows(self.schema, points)


def neighbours(terrain: DataShape, rng: np.random.Generator) -> Iterator[AdjacentDatasets]:
    """Pairs of data sets of every sort, apart by one record: the last, and one anywhere.

    Removed from one it is added to the other. What it is replaced by is of another class, at the
    same point or at a fresh one.
    """
    for data in _datasets(terrain, rng):
        for at in (len(data) - 1, int(rng.integers(len(data)))):
            rest = np.delete(np.arange(len(data)), at)
            yield AdjacentDatasets(data, data.take(rest), data.x[[at]])
            x, y = data.x.copy(), data.y.copy()
            if rng.integers(2):
                x[at] = terrain.points(rng, 1)[0]
            y[at] = 1 - y[at] if terrain.multi_label else (y[at] + 1) % terrain.classes
            yield AdjacentDatasets(data, terrain.dataset(x, y), np.stack([data.x[at], x[at]]))


def queries(
    pair: AdjacentDatasets, terrain: DataShape, rng: np.random.Generator
) -> list[PointArray]:
    """Batches to ask about a pair: how far a vote reaches depends on the rest of its batch."""
    usual = np.concatenate([terrain.points(rng, 4), _near(pair, rng)])
    extreme = _extreme(terrain, rng)
    mixed = rng.permutation(np.concatenate([usual[-8:], extreme]))
    alike = np.repeat(pair.changed[:1], 3, axis=0)
    apart = np.concatenate([alike[:1], extreme[:1], -extreme[:1]])
    batches = [usual, mixed, alike, apart, pair.changed[:1], extreme[:1]]
    return [terrain.allowed(batch) for batch in batches]


def _datasets(terrain: DataShape, rng: np.random.Generator) -> Iterator[Dataset]:
    """Base data sets; a local model learns from two records at least, also with one removed."""
    k = terrain.k
    # Full blocks of a matrix product: with a record less, others move from blocks to what is left.
    many = -(-2 * k // _BLOCK) * _BLOCK
    for count in (3, k + 2, many):
        yield terrain.dataset(terrain.points(rng, count), terrain.labels(rng, count))
    usual, labels = terrain.points(rng, many), terrain.labels(rng, many)
    yield terrain.dataset(usual[rng.integers(0, 3, many)], labels)
    yield terrain.dataset(np.repeat(usual[:1], many, axis=0), labels)
    yield terrain.dataset(usual, np.repeat(labels[:1], many, axis=0))
    yield _sphere(terrain, rng, many)
    yield _outlier(terrain, usual)
    sizes = rng.choice([*SIZES, *TINY, 1.0], size=(many, *[1] * len(terrain.shape)))
    yield terrain.dataset(_scaled(usual, sizes), labels)
    yield terrain.dataset(_scaled(usual, 1e-42), labels)


def _sphere(terrain: DataShape, rng: np.random.Generator, count: int) -> Dataset:
    """All records but the first, the centre, are equally far from that, but for rounding."""
    steps = rng.choice([-0.5, 0.5], size=(count, *terrain.shape))
    steps[0] = 0
    points = (terrain.points(rng, 1) + steps).astype(np.float32)
    return terrain.dataset(points, terrain.labels(rng, count))


def _outlier(terrain: DataShape, usual: PointArray) -> Dataset:
    """The last record is far from all: it would pull a mean along, from one class to the next."""
    usual = usual.astype(np.float32)
    points = np.concatenate([usual[1:], 1000 * usual[:1]])
    along = points.reshape(len(points), -1) @ usual[0].reshape(-1)
    layers = along.argsort().argsort() * terrain.classes // len(points)
    if terrain.multi_label:
        return terrain.dataset(points, (layers[:, None] == np.arange(terrain.classes)).astype(int))
    return terrain.dataset(points, layers)


def _near(pair: AdjacentDatasets, rng: np.random.Generator) -> FloatArray:
    """Where ties are decided: records, the changed one, their middles, and a last bit beside."""
    points = np.concatenate([pair.changed, pair.one.x])
    half = points.astype(np.float64) / 2
    between = half + half[rng.permutation(len(points))]
    middles = np.concatenate([between[:4], 2 * half.mean(axis=0)[None]]).astype(np.float32)
    chosen = np.concatenate([points[:4].astype(np.float32), middles])
    beside = np.nextafter(chosen, np.float32(0))
    return np.concatenate([chosen, beside])


def _extreme(terrain: DataShape, rng: np.random.Generator) -> FloatArray:
    """Points of all sizes: constant, of mixed signs, and with one number of that size only."""
    ones = np.ones((1, *terrain.shape), np.float32)
    single = np.zeros_like(ones)
    single.reshape(-1)[rng.integers(single.size)] = 1
    mixed = np.sign(terrain.points(rng, 1)).astype(np.float32)
    made = [
        _scaled(direction, size) for size in (*SIZES, *TINY) for direction in (-ones, single, mixed)
    ]
    return np.concatenate([*made, np.zeros_like(ones)])


def _scaled(points: PointArray, size: float | FloatArray) -> FloatArray:
    """Points times a size, kept within what a float32 holds."""
    return np.clip(points.astype(np.float64) * size, -LARGEST, LARGEST).astype(np.float32)
