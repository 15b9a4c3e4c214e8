"""The audit: statistics that are right, worlds that are neighbours, faults that are found.

Noise comes from the operating system. Where it is as claimed, an alarm has probability ALLOWED at
most, by the audit's own confidence. Where a bound is expected to lie above a claim or zero, there
are so many votes that it does by eight of its standard deviations, as measured over twenty runs. So
all tests here together fail by chance with probability below 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from scipy import stats

from mpc_vote.app.config import Method
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.privacy.noise import SkellamSampler
from mpc_vote.testbed.audit.labels import (
    MIN_RUNS,
    WITH,
    WITHOUT,
    AttackScenario,
    AuditedRounds,
    Finding,
    LocalVotes,
    Noise,
    Statistic,
    audit,
    least,
    max_rate,
    min_rate,
    skellam,
)
from mpc_vote.voting.ballots import IntArray
from mpc_vote.voting.spec import Spec

ALLOWED = 1e-8
Shape = tuple[int, int, int]


def a_case(
    level: Level = Level.INSTANCE,
    method: Method = Method.KNN,
    *,
    sigma: float,
    queries: int,
    voters: int = 2,
    collusion: int = 0,
    classes: int = 2,
    delta: float = 1e-2,
) -> AuditedRounds:
    scenario = AttackScenario.of(level, method, 10, classes, voters, collusion)
    return AuditedRounds(scenario, voters, 2, queries, sigma, sigma, delta)


async def attack(case: AuditedRounds, votes: int, noise: Noise = skellam) -> list[Finding]:
    return await audit(case, LocalVotes(case, noise), votes, 1 - ALLOWED)


@pytest.mark.parametrize("allowed", [0.4, 1e-3, 1e-9])
@pytest.mark.parametrize("runs", [1, 2, 40, 1_000, 500_000])
def test_limits_are_those_of_clopper_and_pearson(runs: int, allowed: float) -> None:
    for hits in {0, 1, runs // 1_000, runs // 10, runs // 2, runs - 1, runs}:
        low = stats.beta.ppf(allowed, hits, runs - hits + 1) if hits else 0.0
        high = stats.beta.isf(allowed, hits + 1, runs - hits) if hits < runs else 1.0
        least, most = min_rate(hits, runs, allowed), max_rate(hits, runs, allowed)
        assert least == pytest.approx(low, rel=2e-6)
        assert most == pytest.approx(high, rel=2e-6)
        assert least <= low * (1 + 1e-9) and most >= high * (1 - 1e-9)


@pytest.mark.parametrize("delta", [1e-3, 0.1])
@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_a_bound_is_too_high_no_more_often_than_allowed(rate: float, delta: float) -> None:
    """Exactly: summed over all outcomes of runs in worlds of known epsilon."""
    runs, allowed, true = 24, 0.05, 1.0
    hits = np.arange(runs + 1)
    likelier = stats.binom.pmf(hits, runs, min(1.0, math.exp(true) * rate + delta))
    other = stats.binom.pmf(hits, runs, rate)
    wrong = sum(
        likelier[a] * other[b]
        for a in range(runs + 1)
        for b in range(runs + 1)
        if least(Statistic.EPSILON, a, b, runs, delta, allowed) > true
    )
    assert wrong <= allowed


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.6])
def test_a_mu_is_too_high_no_more_often_than_allowed(rate: float) -> None:
    """Exactly: summed over all outcomes of the best test between N(0, 1) and N(mu, 1)."""
    runs, allowed, true = 24, 0.05, 1.0
    hits = np.arange(runs + 1)
    likelier = stats.binom.pmf(hits, runs, stats.norm.cdf(stats.norm.ppf(rate) + true))
    other = stats.binom.pmf(hits, runs, rate)
    wrong = sum(
        likelier[a] * other[b]
        for a in range(runs + 1)
        for b in range(runs + 1)
        if least(Statistic.TRADE_OFF, a, b, runs, 1e-3, allowed) > true
    )
    assert wrong <= allowed


@pytest.mark.parametrize("statistic", list(Statistic))
def test_a_bound_can_reach_no_further_than_its_runs(statistic: Statistic) -> None:
    most = least(statistic, 100, 0, 100, 1e-3, 1e-3)
    assert 0 < most < (math.log(100) if statistic is Statistic.EPSILON else 5)
    assert least(statistic, 50, 50, 100, 1e-3, 1e-3) == 0.0
    assert least(statistic, 0, 100, 100, 1e-3, 1e-3) == 0.0
    assert least(Statistic.EPSILON, 10, 0, 10_000, 0.1, 1e-3) == 0.0


@dataclass
class Coins:
    """Labels that are the target with a known rate in each world, and what was asked for."""

    without: float
    with_: float
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    asked: dict[int, int] = field(default_factory=lambda: {WITHOUT: 0, WITH: 0})

    def room(self, queries: int) -> int:
        return max(1, 10_000 // queries)

    async def labels(self, world: int, placement: int, targets: IntArray) -> IntArray:
        assert len(targets) <= self.room(targets.shape[1])
        self.asked[world] += targets.size
        hit = self.rng.random(targets.shape) < (self.with_ if world == WITH else self.without)
        return np.where(hit, targets, (targets + 1) % 2)


@pytest.mark.parametrize(("without", "with_"), [(0.1, 0.4), (0.6, 0.9), (0.4, 0.1), (0.9, 0.6)])
async def test_the_loss_of_known_coins_is_found_and_not_exceeded(
    without: float, with_: float
) -> None:
    case = a_case(sigma=5.0, queries=1, delta=1e-6)
    coins = Coins(without, with_)
    found, by_mu = await audit(case, coins, 200_000, 0.999)
    rates = (without, with_), (with_, without), (1 - without, 1 - with_), (1 - with_, 1 - without)
    true = max(math.log(p / q) for p, q in rates)
    assert 0.9 * true < found.lower == found.found <= true
    mu = abs(stats.norm.ppf(with_) - stats.norm.ppf(without))
    assert 0.9 * mu < by_mu.found <= mu
    # Whole runs are shared among two placements.
    assert all(199_998 <= asked <= 200_000 for asked in coins.asked.values())


async def test_a_round_tells_more_than_a_query() -> None:
    coins = Coins(0.45, 0.55)
    findings = await audit(a_case(sigma=5.0, queries=50), coins, 100_000, 0.999)
    assert [(each.statistic, each.queries) for each in findings] == [
        (statistic, queries) for queries in (1, 50) for statistic in Statistic
    ]
    single, whole = (each for each in findings if each.statistic is Statistic.EPSILON)
    assert single.lower < math.log(0.55 / 0.45) < 1.0 < whole.lower < 50 * math.log(0.55 / 0.45)
    assert whole.lower <= whole.most < math.log(whole.runs)


async def test_too_few_rounds_are_refused_before_any_vote() -> None:
    coins = Coins(0.5, 0.5)
    with pytest.raises(ValueError, match="more votes, or for fewer queries"):
        await audit(a_case(sigma=5.0, queries=50), coins, 50 * MIN_RUNS - 1, 0.999)
    assert not any(coins.asked.values())


def scenarios() -> Iterator[AttackScenario]:
    for level in Level:
        for method in Method:
            for classes, voters in ((2, 1), (2, 2), (2, 5), (4, 3), (10, 12)):
                yield AttackScenario.of(level, method, 6, classes, voters, 0)


@pytest.mark.parametrize("scenario", list(scenarios()), ids=str)
def test_worlds_are_neighbours_and_as_far_apart_as_the_claim_allows(
    scenario: AttackScenario,
) -> None:
    case = AuditedRounds(scenario, scenario.voters, 2, 1, 5.0, 5.0, 1e-3)
    spec = case.spec(1, 5.0)
    allowed = spec.mechanism.sensitivity(scenario.level)
    bits = spec.message.fraction_bits
    for placement in scenario.placements(5.0):
        for target in range(scenario.classes):
            at, of = np.array([placement]), np.array([target])
            cast = np.array(
                [
                    [
                        spec.encode(name, scenario.votes(place, world, at, of))[0]
                        for place, name in enumerate(case.names()[: scenario.voters])
                    ]
                    for world in (WITHOUT, WITH)
                ]
            )
            assert (cast[WITHOUT, 1:] == cast[WITH, 1:]).all()  # only the victim differs
            assert (cast >> bits).sum(axis=2)[WITH].tolist() == [scenario.k] * scenario.voters
            moved = (cast[WITH] - cast[WITHOUT]).sum(axis=0)
            assert (np.abs(moved).sum(), (moved**2).sum()) == (allowed.l1, allowed.l2_squared)
            fixed = placement + (scenario.k if scenario.level is Level.AGENT else 1)
            assert cast[WITH].sum(axis=0)[target] >> bits == fixed


@pytest.mark.parametrize("method", list(Method))
async def test_without_noise_the_one_vote_decides_every_tie(method: Method) -> None:
    case = a_case(method=method, sigma=5.0, queries=6, voters=3)
    if method is Method.KNN:
        # An even pool, so that it can be split in half.
        case = replace(case, scenario=replace(case.scenario, k=11))

    def none(spec: Spec, place: int, shape: Shape) -> IntArray:
        return np.zeros(shape, dtype=np.int64)

    targets = np.tile(np.arange(6) % 2, (50_000, 1))  # more than one block of the engine
    for world, won in ((WITH, True), (WITHOUT, False)):
        labels = await LocalVotes(case, none).labels(world, case.scenario.tie, targets)
        assert ((labels == targets) == won).all()


async def test_all_but_colluders_add_noise_and_no_more_than_the_quorum_vote() -> None:
    case = replace(a_case(sigma=5.0, queries=4, voters=5, collusion=2), agents=7)
    asked = []

    def recorded(spec: Spec, place: int, shape: Shape) -> IntArray:
        asked.append((place, shape))
        return skellam(spec, place, shape)

    targets = np.zeros((3, 4), dtype=np.int64)
    await LocalVotes(case, recorded).labels(WITH, case.scenario.tie, targets)
    assert asked == [(place, (3, 4, 2)) for place in (0, 3, 4)]
    spec = case.spec(4, 5.0)
    assert 3 * spec.agent_variance == pytest.approx(spec.mechanism.variance)


@pytest.mark.parametrize(
    ("level", "method", "sigma"),
    [
        (Level.INSTANCE, Method.AE, 5.0),
        (Level.INSTANCE, Method.KNN, 5.0),
        (Level.AGENT, Method.AE, 5.0),
        (Level.AGENT, Method.KNN, 30.0),
    ],
)
async def test_noise_as_claimed_passes(level: Level, method: Method, sigma: float) -> None:
    case = a_case(level, method, sigma=sigma, queries=20, voters=4, collusion=1, delta=1e-3)
    findings = await attack(case, 200_000)
    assert not any(finding.violated for finding in findings)
    assert all(finding.lower > 0 for finding in findings if finding.queries == 1)  # nor is it idle


def halved(spec: Spec, place: int, shape: Shape) -> IntArray:
    """Half of the variance."""
    return SkellamSampler(spec.agent_variance / 2).sample(shape)


def one_silent(spec: Spec, place: int, shape: Shape) -> IntArray:
    """One of two agents adds no noise."""
    return skellam(spec, place, shape) * (place == 0)


def deaf(spec: Spec, place: int, shape: Shape) -> IntArray:
    """Noise of one unit, whatever sigma is."""
    return SkellamSampler(1.0).sample(shape)


def reused(spec: Spec, place: int, shape: Shape) -> IntArray:
    """All queries of a round have the same noise."""
    rounds, queries, classes = shape
    return np.repeat(skellam(spec, place, (rounds, 1, classes)), queries, axis=1)


@pytest.mark.parametrize(
    ("fault", "case", "votes"),
    [
        (halved, a_case(sigma=2**0.5, queries=1), 800_000),
        (one_silent, a_case(sigma=2**0.5, queries=1, voters=3, collusion=1), 800_000),
        (deaf, a_case(method=Method.AE, sigma=5.0, queries=20, voters=4, collusion=1), 40_000),
        (deaf, a_case(Level.AGENT, sigma=50.0, queries=20, voters=4, collusion=1), 40_000),
        (reused, a_case(sigma=10.0, queries=20), 200_000),
    ],
)
async def test_planted_faults_are_found(fault: Noise, case: AuditedRounds, votes: int) -> None:
    findings = await attack(case, votes, fault)
    assert any(finding.violated for finding in findings)


@pytest.mark.parametrize("level", list(Level))
async def test_too_small_a_sigma_is_found(level: Level) -> None:
    case = a_case(level, Method.AE, sigma=5.0, queries=20, voters=4, collusion=1)
    findings = await attack(replace(case, sigma=1.0), 100_000)
    assert any(finding.violated for finding in findings)


async def test_many_classes_can_be_attacked_too() -> None:
    case = a_case(Level.AGENT, Method.AE, sigma=1.5, queries=1, voters=9, classes=5, delta=1e-3)
    for found in await attack(case, 40_000):
        assert 0 < found.lower <= found.upper


async def test_the_trade_off_test_sees_what_the_other_needs_more_rounds_for() -> None:
    """Half of the claimed sigma, 2,000 judging rounds.

    Over twenty runs the bounds were 2.21 to 2.66 by epsilon, where 4.75 is charged, and 1.54 to
    1.68 by mu, where the claimed noise has 1.26: an epsilon of 5.4 to 6.0.
    """
    case = a_case(method=Method.AE, sigma=5.0, queries=20, voters=4, collusion=1, delta=1e-3)
    findings = await attack(replace(case, sigma=2.5), 80_000)
    old, new = (each for each in findings if each.queries == 20)
    assert (old.statistic, new.statistic) == (Statistic.EPSILON, Statistic.TRADE_OFF)
    assert new.violated and not old.violated
    assert new.lower > 1.5 * old.lower
