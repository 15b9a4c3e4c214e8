"""How many queries one record changes where its contributions are bounded: measured by attack.

The account of a single record (`mpc_vote.privacy.contributions`) starts from a count: between two
data sets that differ in one record, an agent's answers differ at no more queries than the bound,
twice that where the record is replaced, however many are asked. Here an agent's voters, with their
counters on disk, live through the same rounds in both worlds: hostile queries in batches and alone,
two tasks by turns, the file read again in another order, every round asked for once more. What
leaves is compared, row by row. A count beyond the bound is a fault.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agent_node.contributions import FILE, AlreadyAnswered, Contributions, CountingVoter
from mpc_vote.data.dataset import Dataset, LabelArray, PointArray
from mpc_vote.learning.voters.bounded import BoundedVoter, CountArray
from mpc_vote.privacy.contributions import Neighbours
from mpc_vote.testbed.audit.hostile import AdjacentDatasets, DataShape, neighbours, queries

_LEDGER = "0" * 32
_LIVES = 2


@dataclass(frozen=True)
class BoundedTask:
    """What a task says about neighbours."""

    k: int
    radius: float
    bound: int
    reach: float | None = None

    def voter(self, data: Dataset) -> BoundedVoter:
        """An agent's voter for it."""
        return BoundedVoter(data, self.k, self.radius, self.bound, reach=self.reach)


@dataclass(frozen=True)
class ContributionFinding:
    """The most queries that differed between neighbours, and by how much one of them did."""

    differing: dict[Neighbours, int]
    l2_squared: int
    queries: int

    def exceeds(self, bound: int) -> bool:
        """Whether a record changed more than it may."""
        return self.l2_squared > 2 or any(
            found > kind.value * bound for kind, found in self.differing.items()
        )


@dataclass(frozen=True, eq=False)
class Attack:
    """Two data sets, and batches of queries, which are asked in every life of their agent."""

    pair: AdjacentDatasets
    batches: list[PointArray]


def measure(
    terrain: DataShape, tasks: tuple[BoundedTask, ...], seed: int = 0
) -> ContributionFinding:
    """Attacks an agent that answers these tasks with one set of counters."""
    rng = np.random.default_rng(seed)
    hostile = (Attack(pair, queries(pair, terrain, rng)) for pair in neighbours(terrain, rng))
    return compare(tasks, [*hostile, *constellations(terrain, tasks[0], rng)], rng)


def compare(
    tasks: tuple[BoundedTask, ...], attacks: Iterable[Attack], rng: np.random.Generator
) -> ContributionFinding:
    """What attacks find."""
    differing = dict.fromkeys(Neighbours, 0)
    furthest, asked = 0, 0
    for attack in attacks:
        pair, seed = attack.pair, int(rng.integers(2**32))
        one, other = (
            _answers(tasks, data, attack.batches, seed) for data in (pair.one, pair.other)
        )
        moves = np.concatenate(one) - np.concatenate(other)
        kind = Neighbours.REPLACE if len(pair.one) == len(pair.other) else Neighbours.ADD_REMOVE
        differing[kind] = max(differing[kind], int(moves.any(axis=1).sum()))
        furthest = max(furthest, int(np.square(moves).sum(axis=1).max()))
        asked += len(moves)
    return ContributionFinding(differing, furthest, asked)


def constellations(
    terrain: DataShape, task: BoundedTask, rng: np.random.Generator
) -> Iterator[Attack]:
    """A record that many queries have in common, each with records of its own that only just lie
    behind it: whoever keeps counting it, or counts others for its sake, is seen at every query."""
    here, there = (_constellation(terrain, task, rng, at) for at in (0.0, 9 * task.radius))
    asked = [*here[2], *there[2]]
    x, y = (np.concatenate([one[place] for one in (here, there)]) for place in (0, 1))
    first, second = 0, len(here[0])
    both = np.arange(len(x))
    whole = terrain.dataset(x, y)
    yield Attack(AdjacentDatasets(whole, whole.take(np.delete(both, first)), x[[first]]), here[2])
    one, other = (whole.take(np.delete(both, gone)) for gone in (second, first))
    yield Attack(AdjacentDatasets(one, other, x[[first, second]]), asked)


def _constellation(
    terrain: DataShape, task: BoundedTask, rng: np.random.Generator, at: float
) -> tuple[PointArray, LabelArray, list[PointArray]]:
    """Records, of which the first is the one in question, their labels, and batches. In the first
    batch queries near the first record, and others, have a further record in common."""
    number, width = 3 * task.bound, int(np.prod(terrain.shape))
    axes = np.linalg.qr(rng.normal(size=(width, width)))[0]
    spokes = axes[1 + np.arange(number) % (width - 1)]
    near = 0.9 * spokes
    shared, beside = 0.3 * axes[:1], 1.05 * axes[:1] + 0.4 * spokes
    # As far from their query as the radius allows, and in the direction from the first record.
    behind = np.repeat(np.concatenate([near, beside]) + 0.95 * np.tile(spokes, (2, 1)), task.k, 0)
    behind += 1e-3 * rng.normal(size=behind.shape)
    records = np.concatenate([np.zeros((1, width)), shared, behind])
    labels = np.concatenate([[0, 1], np.full(len(behind), 2 % terrain.classes)])
    batches = [np.concatenate([near, beside]), near[: task.bound], near]
    shaped = [
        terrain.allowed((at + task.radius * rows).astype(np.float32).reshape(-1, *terrain.shape))
        for rows in (records, *batches)
    ]
    return shaped[0], labels, shaped[1:]


def counted_from_afar(task: BoundedTask, data: Dataset) -> int:
    """How often a record was counted at queries that all lie far beyond the task's radius, asked
    alone and together."""
    far = (np.abs(data.x).max() + 3 * task.radius) * np.ones((4, *data.shape), np.float32)
    voter = task.voter(data)
    used = np.zeros(len(data), np.uint32)
    for batch in (far, far[:1], far[:2] * np.float32(2)):
        _, used = voter.answer(batch, used)
    return int(used.max())


def _answers(
    tasks: tuple[BoundedTask, ...], data: Dataset, batches: list[PointArray], seed: int
) -> list[CountArray]:
    """What leaves an agent that lives with these records: its file is read again for every life."""
    rng = np.random.default_rng(seed)
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        return [
            answer
            for life in range(_LIVES)
            for answer in _life(
                Path(folder), tasks, data.take(rng.permutation(len(data))), batches, life
            )
        ]


def _life(
    folder: Path,
    tasks: tuple[BoundedTask, ...],
    data: Dataset,
    batches: list[PointArray],
    life: int,
) -> Iterator[CountArray]:
    with closing(Contributions(folder / FILE, _LEDGER)) as kept:
        voters = []
        for task in tasks:
            bounded = task.voter(data)
            voters.append(CountingVoter(bounded, kept.of(bounded.identities)))
        for number, batch in enumerate(batches):
            for place, voter in enumerate(voters):
                for _ in range(2):
                    try:
                        yield voter.answer(f"{life}-{number}-{place}", batch)
                    except AlreadyAnswered:
                        continue
