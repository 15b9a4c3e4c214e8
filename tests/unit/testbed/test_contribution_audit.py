"""However many queries are asked, a record changes no more of them than its bound; each rule that
this stands on is broken here once, and found."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_node.contributions import Contributions, CountingVoter, RecordCounters
from mpc_vote.data import identity
from mpc_vote.data.dataset import Dataset, FloatArray
from mpc_vote.data.identity import IdentityArray
from mpc_vote.learning.voters import bounded, knn
from mpc_vote.learning.voters.bounded import BoundedVoter, CountArray, UsedArray
from mpc_vote.privacy.contributions import Neighbours
from mpc_vote.testbed.audit.contributions import (
    Attack,
    BoundedTask,
    ContributionFinding,
    compare,
    constellations,
    counted_from_afar,
    measure,
)
from mpc_vote.testbed.audit.hostile import DataShape, neighbours, queries

TERRAIN = DataShape((4, 4), 3, 4)
BOUND = 5
USUAL = BoundedTask(k=4, radius=2.0, bound=BOUND)
TASKS = (USUAL, BoundedTask(k=2, radius=3.0, bound=3, reach=0.5))
WIDE = (BoundedTask(k=4, radius=1e12, bound=BOUND),)


def attacked(tasks: tuple[BoundedTask, ...] = (USUAL,)) -> ContributionFinding:
    """By what the faults below are found with."""
    rng = np.random.default_rng(0)
    return compare(tasks, constellations(TERRAIN, tasks[0], rng), rng)


@pytest.mark.parametrize("tasks", [TASKS, WIDE], ids=["two tasks", "all within reach"])
def test_a_record_changes_no_more_queries_than_its_bound(tasks: tuple[BoundedTask, ...]) -> None:
    found = measure(TERRAIN, tasks)
    assert not found.exceeds(BOUND)
    # The attack is not idle: a record changes as many as it may, and moves what it may.
    assert found.differing == {Neighbours.ADD_REMOVE: BOUND, Neighbours.REPLACE: 2 * BOUND}
    assert found.l2_squared == 2
    assert found.queries > 1000


def test_without_a_bound_it_would_change_many_more() -> None:
    loose = (BoundedTask(k=4, radius=2.0, bound=3 * BOUND),)
    assert attacked(loose).exceeds(BOUND)
    assert not attacked().exceeds(BOUND)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(1, 9),
    bound=st.integers(1, 9),
    radius=st.sampled_from([1e-3, 0.5, 2.0, 1e6, 1e15]),
    reach=st.sampled_from([None, 0.1, 0.6]),
)
def test_nor_for_other_bounds_radii_and_numbers_of_neighbours(
    seed: int, k: int, bound: int, radius: float, reach: float | None
) -> None:
    rng = np.random.default_rng(seed)
    pairs = list(neighbours(TERRAIN, rng))
    chosen = [pairs[at] for at in rng.permutation(len(pairs))[:6]]
    attacks = [Attack(pair, queries(pair, TERRAIN, rng)) for pair in chosen]
    tasks = (BoundedTask(k, radius, bound, reach), BoundedTask(3, 1.0, max(1, bound - 2)))
    attacks += constellations(TERRAIN, tasks[0], rng)
    assert not compare(tasks, attacks, rng).exceeds(bound)


def test_a_radius_that_is_a_share_of_the_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single query would count every record, and a client could retire them all."""
    data = next(constellations(TERRAIN, USUAL, np.random.default_rng(0))).pair.one
    task = BoundedTask(k=4, radius=2.0, bound=BOUND, reach=0.5)
    assert counted_from_afar(task, data) == 0
    sound = knn.limits
    monkeypatch.setattr(bounded, "limits", lambda rows, reach, _: sound(rows, reach, None))
    assert counted_from_afar(task, data) > 0


def test_retirement_after_the_nearest_are_taken_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record then keeps others from its place for ever."""

    def nearest(
        self: BoundedVoter, queries: FloatArray, limit: FloatArray, used: UsedArray
    ) -> CountArray:
        distances = bounded.distances_between(queries, self._vectors)
        within = distances <= limit[:, None]
        keys = bounded._keys(distances, 0)
        keys[~within] = bounded._OUT
        kept = np.sort(keys, axis=1)[:, : self.k]
        counted = self._counted(within, used)
        used += counted.sum(axis=0, dtype=np.uint32)
        for row, found in enumerate(kept):
            gone = ~np.isin(found, keys[row][counted[row]])
            kept[row][gone] = bounded._OUT
        return kept  # type: ignore[return-value]

    monkeypatch.setattr(BoundedVoter, "_nearest", nearest)
    assert attacked().exceeds(BOUND)


def test_counting_the_nearest_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whom a record keeps from the nearest is counted less: others' counters tell of it."""

    def nearest(
        self: BoundedVoter, queries: FloatArray, limit: FloatArray, used: UsedArray
    ) -> CountArray:
        taken = []
        for row, query in enumerate(queries):
            distances = bounded.distances_between(query[None], self._vectors)
            keys = bounded._keys(distances, 0)
            keys[(distances > limit[row]) | (used >= self.bound)] = bounded._OUT
            found = np.sort(keys[0])[: self.k]
            places = found[found != bounded._OUT] & np.uint64(0xFFFFFFFF)
            used[places.astype(np.int64)] += 1
            taken.append(found)
        return np.array(taken)

    monkeypatch.setattr(BoundedVoter, "_nearest", nearest)
    assert attacked().exceeds(BOUND)


def test_counters_of_each_task_alone_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound, tasks = Contributions.of, count()

    def of(self: Contributions, names: IdentityArray) -> RecordCounters:
        salted = names.copy()
        salted.view(np.uint8).reshape(-1, identity.ID_BYTES)[:, 0] ^= next(tasks) % 2
        return sound(self, salted)

    monkeypatch.setattr(Contributions, "of", of)
    assert attacked((USUAL, BoundedTask(k=4, radius=2.0, bound=BOUND))).exceeds(BOUND)


def test_counters_that_are_lost_when_a_file_is_read_again_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Records that are known by their place in the file."""
    monkeypatch.setattr(
        Dataset,
        "identities",
        lambda self: identity.of_identifiers([str(place) for place in range(len(self))]),
    )
    assert attacked().exceeds(BOUND)


def test_queries_taken_in_another_order_than_that_of_the_batch_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First come, first served, where the quickest is the one with the fewest records near."""
    sound = BoundedVoter.answer

    def by_arrival(
        self: BoundedVoter, queries: FloatArray, used: UsedArray
    ) -> tuple[CountArray, UsedArray]:
        distances = bounded.distances_between(
            np.ascontiguousarray(queries.reshape(len(queries), -1)), self._vectors
        )
        order = np.argsort((distances <= self._radius**2).sum(axis=1), kind="stable")
        counts, after = sound(self, queries[order], used)
        return counts[np.argsort(order)], after

    monkeypatch.setattr(BoundedVoter, "answer", by_arrival)
    assert attacked().exceeds(BOUND)


def test_an_answer_that_is_drawn_anew_when_it_is_sent_again_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second one was not counted: it was the same round."""
    sound = CountingVoter.answer
    before: dict[CountingVoter, UsedArray] = {}

    def answer(self: CountingVoter, round_id: str, queries: FloatArray) -> CountArray:
        if round_id in self._counters._kept.rounds():
            return self._voter.answer(queries, before[self])[0]
        before[self] = self._counters.used()
        return sound(self, round_id, queries)

    monkeypatch.setattr(CountingVoter, "answer", answer)
    assert attacked().exceeds(BOUND)
