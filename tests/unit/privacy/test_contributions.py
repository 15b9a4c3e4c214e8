"""What a single record loses where its contributions are bounded: figures, soundness, rounds of
different noise and bounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from mpc_vote.privacy import contributions
from mpc_vote.privacy.accountant import gaussian_exact_epsilon
from mpc_vote.privacy.certificates import Certificate
from mpc_vote.privacy.charging import Against
from mpc_vote.privacy.contributions import BoundedRound, Neighbours, record_epsilon
from mpc_vote.privacy.gdp import unit_mu
from mpc_vote.privacy.loss_filter import SLACK_SHARE
from mpc_vote.privacy.mechanisms import Clipped, Mechanism, PoissonGaussian, SkellamVote
from mpc_vote.voting.ballots import KNN_COUNT, KNN_FREQUENCY
from mpc_vote.voting.charge import charge, committee_charge

DELTA = 1e-3
ADDED, REPLACED = Neighbours.ADD_REMOVE, Neighbours.REPLACE


def votes(queries: int, sigma: float) -> SkellamVote:
    """Count ballots under Skellam noise of whole votes."""
    return charge(KNN_COUNT, queries=queries, variance=sigma**2, fraction_bits=0, ks=(50,))


COINS = committee_charge(KNN_COUNT, queries=500, sigma=40.0, ks=(50,))


def told(mechanism: Mechanism, bound: int, neighbours: Neighbours, **kind: object) -> float:
    return record_epsilon([BoundedRound(mechanism, bound)], DELTA, neighbours, **kind)  # type: ignore[arg-type]


def test_the_demos_record_loses_less_than_half_of_what_its_round_does() -> None:
    """500 queries, sigma 40, at most 60 of them: by the totals."""
    assert told(votes(500, 40), 60, ADDED) == pytest.approx(0.6607, abs=0.0005)
    assert told(votes(500, 40), 60, REPLACED) == pytest.approx(0.9978, abs=0.0005)
    worst = record_epsilon([BoundedRound(votes(500, 40))], DELTA, ADDED)
    assert worst == pytest.approx(2.354, abs=0.001)


def test_under_the_committees_coins_it_is_nearly_the_same() -> None:
    assert told(COINS, 60, ADDED) == pytest.approx(0.6656, abs=0.001)
    assert told(COINS, 60, REPLACED) == pytest.approx(1.0023, abs=0.001)


def test_those_who_see_labels_learn_less() -> None:
    assert told(COINS, 60, ADDED, against=Against.LABELS) == pytest.approx(0.5379, abs=0.001)
    assert told(COINS, 60, REPLACED, against=Against.LABELS) == pytest.approx(0.7960, abs=0.001)


def test_where_labels_have_no_certificate_they_are_charged_as_totals() -> None:
    frequency = charge(KNN_FREQUENCY, queries=9, variance=36.0, fraction_bits=3, ks=(5,))
    rest = [BoundedRound(frequency, 9)]
    assert record_epsilon(rest, DELTA, ADDED, Against.LABELS) == record_epsilon(rest, DELTA, ADDED)


def test_a_bound_beyond_all_queries_changes_nothing_and_none_at_all_counts_them_all() -> None:
    for neighbours in Neighbours:
        every = record_epsilon([BoundedRound(votes(30, 20))], DELTA, neighbours)
        assert told(votes(30, 20), 30, neighbours) == every
        assert told(votes(30, 20), 10**9, neighbours) == every
    assert told(votes(30, 20), 15, REPLACED) == every
    assert told(votes(30, 20), 14, REPLACED) < every
    assert record_epsilon([], DELTA, ADDED) == 0


def gaussian(*squares: float) -> float:
    return gaussian_exact_epsilon(math.sqrt(2 * sum(squares)), DELTA * (1 - SLACK_SHARE))


def test_the_dearest_queries_of_all_rounds_count_whenever_they_were_asked() -> None:
    dear, cheap = unit_mu(10.0**2) ** 2, unit_mu(40.0**2) ** 2
    for order in itertools.permutations([(votes(3, 10), 5), (votes(90, 40), 5)]):
        rounds = [BoundedRound(*one) for one in order]
        found = record_epsilon(rounds, DELTA, ADDED)
        assert found == pytest.approx(gaussian(3 * dear, 2 * cheap), rel=1e-3)
        assert found >= gaussian(3 * dear, 2 * cheap)
        twice = record_epsilon(rounds, DELTA, REPLACED)
        assert twice == pytest.approx(gaussian(3 * dear, 7 * cheap), rel=1e-3)


def test_of_different_bounds_the_largest_counts_for_all_bounded_rounds_together() -> None:
    square = unit_mu(20.0**2) ** 2
    rounds = [BoundedRound(votes(50, 20), bound) for bound in (4, 9, 2)]
    assert record_epsilon(rounds, DELTA, ADDED) == pytest.approx(gaussian(9 * square), rel=1e-3)


def test_a_round_without_a_bound_counts_with_every_query_beside_the_others() -> None:
    square = unit_mu(20.0**2) ** 2
    rounds = [BoundedRound(votes(50, 20), 4), BoundedRound(votes(7, 20))]
    assert record_epsilon(rounds, DELTA, ADDED) == pytest.approx(gaussian(11 * square), rel=1e-3)
    assert record_epsilon(rounds, DELTA, REPLACED) == pytest.approx(gaussian(15 * square), rel=1e-3)


def planned(certificates: list[Certificate]) -> float:
    """Of steps that are known beforehand, by all floors at which each may be charged."""

    def needed(rest: float, steps: list[Certificate]) -> float:
        if not steps:
            return rest
        *before, last = steps
        charges = zip(last.floors, last.costs, strict=True)
        return min(needed(max(rest, floor) + cost, before) for floor, cost in charges)

    return gaussian_exact_epsilon(math.sqrt(needed(0.0, certificates)), DELTA)


def test_no_choice_of_queries_costs_more_than_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates that cost less where more follows: every choice of queries, one after the other,
    is planned for."""
    tables = {
        6.0: Certificate((0.0, 1.0, 3.0), (1.0, 0.8, 0.65), 1e-9),
        7.0: Certificate((0.0, 0.7), (0.9, 0.7), 1e-9),
    }
    monkeypatch.setattr(
        contributions,
        "_cost",
        lambda given, against: contributions._Cost(tables[math.sqrt(given.variance)], 1),
    )
    sigmas = (6.0, 7.0, 7.0, 6.0, 7.0, 6.0)
    for bound in range(1, 6):
        rounds = [BoundedRound(votes(1, sigma), bound) for sigma in sigmas]
        told = record_epsilon(rounds, DELTA, ADDED)
        choices = itertools.combinations(range(len(sigmas)), bound)
        worst = max(planned([tables[sigmas[at]] for at in chosen]) for chosen in choices)
        assert worst <= told <= worst * 1.001


def test_an_account_that_takes_the_cheapest_or_the_first_queries_would_be_caught() -> None:
    """Planted: the sum over the first queries only, which may be the cheap ones."""
    rounds = [BoundedRound(votes(9, 40), 9), BoundedRound(votes(9, 10), 9)]
    planted = record_epsilon(rounds[:1], DELTA, ADDED)
    assert record_epsilon(rounds, DELTA, ADDED) > 2 * planted


def test_noise_that_hides_nothing_is_told_as_such() -> None:
    assert told(votes(5, 1e-5), 2, ADDED) > 100
    coins = committee_charge(KNN_COUNT, queries=5, sigma=0.05, ks=(5,))
    assert told(coins, 2, ADDED) == math.inf


@pytest.mark.parametrize("slack", [0.0, 1e-6, 1e-3])
def test_what_a_step_adds_to_delta_is_paid_for(
    slack: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = contributions._Cost(Certificate.of_mu(0.1, slack), 2)
    monkeypatch.setattr(contributions, "_cost", lambda *_: cost)
    found = record_epsilon([BoundedRound(votes(40, 9), 3)], DELTA, ADDED)
    aside = DELTA * SLACK_SHARE
    fits = 3 * 2 * slack <= aside
    whole = gaussian_exact_epsilon(0.1 * math.sqrt(6), DELTA - aside) if fits else math.inf
    assert found == pytest.approx(whole, rel=1e-6)


def test_what_has_no_figure_is_not_counted_as_nothing() -> None:
    unknown = PoissonGaussian(5, 0.1, 1.0, Clipped(1.0), Clipped(1.0))
    rounds = [BoundedRound(votes(5, 10), 5), BoundedRound(unknown)]
    assert record_epsilon(rounds, DELTA, ADDED) == math.inf


def test_needed_never_falls_where_more_must_be_left() -> None:
    cost = contributions._Cost(Certificate((0.1, 1.0), (0.5, 0.3), 0.0), 2)
    rest = np.array([0.0, 0.1, 0.4, 0.6, 1.0, 5.0])
    needed = cost.before(rest)
    assert needed == pytest.approx([1.1, 1.1, 1.3, 1.4, 1.6, 5.6], rel=1e-9)
