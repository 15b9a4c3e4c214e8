"""The filter for a single record: whichever queries it contributed to, the limit holds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mpc_vote.privacy.certificates import Certificate
from mpc_vote.privacy.contributions import BoundedRound, Neighbours, record_epsilon
from mpc_vote.privacy.gdp import unit_mu
from mpc_vote.privacy.loss_filter import LimitReached, LossFilter
from mpc_vote.privacy.record_filter import RecordFilter
from mpc_vote.voting.ballots import KNN_COUNT
from mpc_vote.voting.charge import charge

DEAR = Certificate((0.0, 1.0, 3.0), (1.0, 0.8, 0.65), 1e-9)
CHEAP = Certificate((0.0, 0.7), (0.5, 0.3), 1e-8)
LIMIT = 12.0


def start(square: float = LIMIT, slack: float = 1e-5) -> RecordFilter:
    return RecordFilter(np.array([square]), np.array([slack]))


@pytest.mark.parametrize("bounds", [(3, 3, 3), (2, 4, 1), (3, None, 3), (1, 3, None)])
def test_on_every_path_no_less_is_left_than_the_filter_says(
    bounds: tuple[int | None, ...],
) -> None:
    """Every record's filter, for all choices of the queries that it may contribute to."""
    rounds = list(zip((DEAR, CHEAP, DEAR), (2, 4, 3), bounds, strict=True))
    told = start()
    for certificate, queries, bound in rounds:
        told = told.after(certificate, queries, bound)
    asked = [(one, bound) for one, queries, bound in rounds for _ in range(queries)]
    least = np.full(20, np.inf)
    for chosen in itertools.product((False, True), repeat=len(asked)):
        filter_, counted = LossFilter(LIMIT, 1e-5), 0
        for (certificate, bound), near in zip(asked, chosen, strict=True):
            if bound is None:
                filter_ = filter_.after(certificate, 1)
            elif near and counted < bound:
                filter_, counted = filter_.after(certificate, 1), counted + 1
        assert filter_.square >= told.left[counted] * (1 - 1e-9)
        assert filter_.slack >= told.slack[counted] * (1 - 1e-9)
        least[counted] = min(least[counted], filter_.square)
    # Where bounds don't fall, some record has no more left: nothing is charged in vain.
    if sorted(one or 9 for one in bounds) == [one or 9 for one in bounds]:
        assert told.left == pytest.approx(least[: len(told.left)], rel=1e-9)


@pytest.mark.parametrize("bounds", [(2, 1), (1, 2), (3, 1)])
def test_of_two_records_one_may_contribute_where_the_other_may_not(bounds: tuple[int, ...]) -> None:
    """A record and what it is replaced by, each with a counter of its own."""
    rounds = list(zip((CHEAP, DEAR), (4, 2), bounds, strict=True))
    told = start()
    for certificate, queries, bound in rounds:
        told = told.after(certificate, queries, 2 * bound)
    asked = [(one, bound) for one, queries, bound in rounds for _ in range(queries)]
    for chosen in itertools.product(((0, 0), (0, 1), (1, 0), (1, 1)), repeat=len(asked)):
        filter_, counters, differ = LossFilter(LIMIT, 1e-5), [0, 0], 0
        for (certificate, bound), near in zip(asked, chosen, strict=True):
            counted = [bool(at) and counters[n] < bound for n, at in enumerate(near)]
            counters = [n + at for n, at in zip(counters, counted, strict=True)]
            if any(counted):
                filter_, differ = filter_.after(certificate, 1), differ + 1
        assert filter_.square >= told.left[differ] * (1 - 1e-9)


def test_it_refuses_when_one_record_could_not_pay_and_not_before() -> None:
    mu = Certificate.of_mu(1.0)
    assert start(3.5).after(mu, 100, 3).left == pytest.approx([3.5, 2.5, 1.5, 0.5])
    with pytest.raises(LimitReached):
        start(3.5).after(mu, 100, 4)
    with pytest.raises(LimitReached):
        start(3.5).after(mu, 100, 3).after(mu, 1, None)
    with pytest.raises(LimitReached):
        start(3.5).after(mu, 2, 3, steps=2)
    # The same three, or dearer ones in their place: four times as dear is too much.
    once = start(3.5).after(mu, 100, 3)
    assert once.after(mu, 100, 3).left == pytest.approx(once.left)
    with pytest.raises(LimitReached):
        once.after(Certificate.of_mu(2.0), 1, 3)


def test_what_steps_add_to_delta_runs_out_as_well() -> None:
    step = Certificate.of_mu(0.01, 1e-6)
    assert start(slack=1.1e-5).after(step, 50, 10).slack.min() >= 0
    with pytest.raises(LimitReached):
        start(slack=1.1e-5).after(step, 50, 12)


def test_it_allows_what_the_account_says_and_no_more() -> None:
    vote = charge(KNN_COUNT, queries=500, variance=1600.0, fraction_bits=0, ks=(50,))
    mu = Certificate.of_mu(2**0.5 * unit_mu(1600.0))
    for kind in Neighbours:
        told = record_epsilon([BoundedRound(vote, 60)], 1e-3, kind)
        RecordFilter.for_limit(told * 1.01, 1e-3).after(mu, 500, kind.value * 60)
        with pytest.raises(LimitReached):
            RecordFilter.for_limit(told * 0.99, 1e-3).after(mu, 500, kind.value * 60)
