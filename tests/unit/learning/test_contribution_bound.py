"""Radius and bound follow from a public sample, by a rule that anybody can repeat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpc_vote.data.sample import Wishes
from mpc_vote.learning.contribution_bound import suggest_bound
from mpc_vote.learning.drafting import draft_task
from mpc_vote.learning.voters.knn import limits


def spread(seed: int, rows: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 5)).astype(np.float32)


def test_nearly_all_points_have_their_reach_and_may_answer_what_comes_near_them() -> None:
    sample, later = spread(0, 400), spread(1, 600)
    found = suggest_bound(sample, 0.1, len(later))
    reached = limits(sample, 0.1, None)
    assert 0.95 <= (reached <= found.radius**2).mean() < 1
    # As many queries as were planned, and records like the sample's.
    within = limits(later, 0.1, found.radius)
    distances = ((later[:, None] - sample[None]) ** 2).sum(axis=2)
    times = (distances <= within[:, None]).sum(axis=0)
    assert 0.02 < (times > found.max_contributions).mean() < 0.1


def test_twice_the_queries_take_twice_the_bound_and_the_same_radius() -> None:
    one, other = (suggest_bound(spread(0, 300), 0.1, queries) for queries in (500, 1000))
    assert one.radius == other.radius
    assert other.max_contributions == pytest.approx(2 * one.max_contributions, abs=1)


def test_a_large_sample_is_thinned_and_one_that_says_nothing_is_refused() -> None:
    few, many = (suggest_bound(spread(0, rows), 0.1, 500) for rows in (2_000, 9_000))
    assert many.radius == pytest.approx(few.radius, rel=0.1)
    for rows in (spread(0, 1), np.zeros((9, 5), np.float32)):
        with pytest.raises(ValueError, match="sample"):
            suggest_bound(rows, 0.1, 500)


def table(path: Path) -> Path:
    rows = "\n".join(
        f"p{n},{a:.3f},{b:.3f},{'ny'[int(a > 0)]}" for n, (a, b, *_) in enumerate(spread(2, 150))
    )
    path.write_text(f"who,a,b,out\n{rows}\n")
    return path


def test_a_task_is_drafted_with_both_and_says_where_they_are_from(tmp_path: Path) -> None:
    sample, wishes = table(tmp_path / "p.csv"), Wishes("out", identifier="who")
    drafted = draft_task(sample, wishes, reach=0.1, planned_queries=800)
    vote = drafted.task.vote
    assert vote.radius is not None and vote.max_contributions is not None
    assert 80 <= vote.max_contributions <= 200
    assert any(f"at most {vote.max_contributions} queries" in note for note in drafted.draft.notes)
    given = draft_task(sample, wishes, reach=0.1, planned_queries=800, max_contributions=7)
    assert given.task.vote.max_contributions == 7
    assert given.task.vote.radius == vote.radius
    with pytest.raises(ValueError, match="takes a kNN ballot and --reach"):
        draft_task(sample, wishes, planned_queries=800)
    texts = tmp_path / "t.txt"
    texts.write_text("a text\nanother one\n")
    with pytest.raises(ValueError, match="leave --identifier out"):
        draft_task(texts, Wishes(classes=("a", "b"), identifier="who"))
