"""Plans: what a number of queries would cost before anybody is asked, and the noise or queries for
an epsilon.

A plan names noise in votes. The noise that counts is what nobody who attacks knows. Agents know
nothing of what the committee draws in a verified round. Where agents add it, each adds sigma^2 /
(quorum - collusion), so a round that completes carries at least sigma^2 that no `collusion` agents
know together. Agents beyond that number know more, and leave less.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

from mpc_vote.privacy import coins, noise
from mpc_vote.privacy.accountant import (
    MIN_DELTA,
    Epsilons,
    epsilon,
    epsilons,
    gaussian_exact_epsilon,
    simple_epsilon,
)
from mpc_vote.privacy.charging import Against, charged_epsilon
from mpc_vote.privacy.mechanisms import CoinVote, GaussianVote, Level, SkellamVote
from mpc_vote.privacy.rounding import round_up
from mpc_vote.voting.ballots import BallotKind
from mpc_vote.voting.charge import charge, committee_charge
from mpc_vote.voting.limits import MAX_AGENTS, MAX_K

MAX_PLANNED_QUERIES = 10**9
"""Far more than anybody labels; it bounds the search for a number of queries."""

MIN_SIGMA = 0.01
"""In votes; with less noise no label is protected, and the bounds say nothing."""

MAX_EXACT = 10_000.0
"""The tight epsilon above which noise of integers is not accounted for exactly."""

MAX_UNITS = noise.MAX_STD * math.sqrt(MAX_AGENTS)
"""The most Skellam noise, as a standard deviation in units, that a full roster can draw."""

Vote: TypeAlias = SkellamVote | CoinVote | GaussianVote

_DIGITS = 4
_FIRST = 1000  # the first number of so many digits
_PER_DECADE = 9 * _FIRST


class PlanError(ValueError):
    """A plan that can't be; the sentence says why and what to do."""


class Noise(enum.StrEnum):
    """Coins are what the committee draws in verified rounds, Skellam what agents add in others;
    Gaussian is the ideal that both stand for, without encoding."""

    COINS = "coins"
    SKELLAM = "skellam"
    GAUSSIAN = "gaussian"


class Accountant(enum.StrEnum):
    """How epsilon is computed from the noise: of noisy totals, loosest first, and of labels."""

    SIMPLE = "simple"
    TIGHT = "tight"
    TOTALS = "totals"
    LABELS = "labels"
    EXACT = "exact"


@dataclass(frozen=True)
class Roster:
    """Who votes, and shares the noise if agents add it: a round completes with `quorum` agents or
    more."""

    agents: int
    quorum: int
    collusion: int = 0

    def __post_init__(self) -> None:
        if self.agents < 1:
            raise PlanError(f"agents must be at least 1, not {self.agents}")
        if not 1 <= self.quorum <= self.agents:
            raise PlanError(
                f"the quorum must be 1 to the number of agents, {self.agents}, not {self.quorum}"
            )
        if not 0 <= self.collusion < self.quorum:
            raise PlanError(
                f"the collusion bound must be 0 or more and below the quorum, {self.quorum}, not "
                f"{self.collusion}: with no honest agent left there is no noise to hide behind"
            )


@dataclass(frozen=True)
class CostPlan:
    """A number of queries under one mechanism; `sigma` in votes, `ks` the public k of agents."""

    ballot: BallotKind
    noise: Noise
    sigma: float
    queries: int
    delta: float
    ks: tuple[int, ...] = ()
    tau: int | None = None
    roster: Roster | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.queries <= MAX_PLANNED_QUERIES:
            raise PlanError(f"queries must be 1 to {MAX_PLANNED_QUERIES}, not {self.queries}")
        if not MIN_DELTA <= self.delta < 1:
            raise PlanError(f"delta must be at least {MIN_DELTA:g} and below 1, not {self.delta:g}")
        if self.ballot.needs_k:
            if not self.ks:
                raise PlanError("kNN ballots need k: the public number of neighbours of an agent")
            if not all(1 <= k <= MAX_K for k in self.ks):
                raise PlanError(f"k must be 1 to {MAX_K}")
            if self.roster is not None and len(self.ks) > self.roster.agents:
                agents = "1 agent" if self.roster.agents == 1 else f"{self.roster.agents} agents"
                raise PlanError(f"there are {len(self.ks)} k for {agents}")
        elif self.ks:
            raise PlanError("k is for kNN ballots only: models vote without neighbours")
        if self.ballot.needs_tau:
            if self.tau is None or self.tau < 1:
                raise PlanError(
                    f"{self.ballot.name} ballots need tau: the most that an agent names"
                )
        elif self.tau is not None:
            raise PlanError(f"{self.ballot.name} ballots have no tau")
        if self.noise is Noise.COINS and not self.ballot.can_be_verified:
            raise PlanError(
                f"{self.ballot.name} ballots can't be verified, and coins are for verified rounds: "
                f"use {Noise.SKELLAM} noise"
            )
        if self.noise is Noise.COINS and self.roster is not None and self.roster.collusion:
            raise PlanError(
                "agents know none of the committee's noise: there is no collusion bound"
            )
        if not self.least_sigma <= self.sigma <= self.largest_sigma:
            raise PlanError(
                f"sigma must be {self.least_sigma:g} to {self.largest_sigma:.6g} votes, not "
                f"{self.sigma:g}"
            )

    @property
    def fraction_bits(self) -> int:
        """A vote is 2^f units, as in the service."""
        if self.noise is Noise.COINS:
            return coins.fraction_bits_for(self.sigma)
        return self.ballot.default_fraction_bits(self.ks)

    @property
    def least_sigma(self) -> float:
        """With less no label is protected, or no service could draw it."""
        return coins.MIN_SIGMA if self.noise is Noise.COINS else MIN_SIGMA

    @property
    def largest_sigma(self) -> float:
        """No service could draw more, whoever is in its roster."""
        if self.noise is Noise.COINS:
            return coins.MAX_SIGMA
        return MAX_UNITS / self.unit if self.noise is Noise.SKELLAM else noise.MAX_SIGMA

    @property
    def objections(self) -> list[str]:
        """Why the service would refuse such a round, whatever it costs."""
        if self.roster is None:
            return []
        found = []
        if self.roster.agents > MAX_AGENTS:
            found.append(f"it takes at most {MAX_AGENTS} agents")
        if self.noise is Noise.SKELLAM:
            std = math.sqrt(self._agent_variance())
            if std > noise.MAX_STD:
                found.append(
                    f"an agent would add noise of {std:.4g} units of 1/{self.unit} vote, and at "
                    f"most {noise.MAX_STD:g} can be drawn"
                )
        return found

    @property
    def unit(self) -> int:
        """Units in a vote: of the encoding, or without one such that sensitivities are whole."""
        if self.noise is Noise.GAUSSIAN:
            return self.ballot.ideal_unit(self.ks)
        return 1 << self.fraction_bits

    @property
    def mechanism(self) -> Vote:
        """What is charged: only noise that no coalition of the assumed size knows counts."""
        return self._with(self._parts)

    def against(self, coalition: int) -> Vote | None:
        """The mechanism as so many agents see it who know their own noise; None: all of it."""
        left = self._quorum - coalition
        return self._with(left) if left > 0 else None

    def moved(self, level: Level) -> Fraction:
        """The most that neighbours move one query's total: its squared l2 norm in votes."""
        return Fraction(self.mechanism.sensitivity(level).l2_squared, self.unit**2)

    @property
    def _quorum(self) -> int:
        return 1 if self.roster is None else self.roster.quorum

    @property
    def _parts(self) -> int:
        """Into how many parts the noise that counts is split."""
        return self._quorum - (0 if self.roster is None else self.roster.collusion)

    def _with(self, parts: int) -> Vote:
        """The mechanism under the noise of so many agents, where agents add it."""
        if self.noise is Noise.COINS:
            return committee_charge(
                self.ballot, queries=self.queries, sigma=self.sigma, ks=self.ks, tau=self.tau
            )
        if self.noise is Noise.SKELLAM:
            return charge(
                self.ballot,
                queries=self.queries,
                variance=self._agent_variance() * parts,
                fraction_bits=self.fraction_bits,
                ks=self.ks,
                tau=self.tau,
            )
        agent, instance = self.ballot.ideal_sensitivities(self.ks, self.tau)
        variance = float(Fraction(self.sigma) ** 2 * self.unit**2 * parts / self._parts)
        return GaussianVote(self.queries, variance, agent, instance)

    def _agent_variance(self) -> float:
        return noise.per_agent_variance(
            self.sigma, self.fraction_bits, self._quorum, self._quorum - self._parts
        )


@dataclass(frozen=True)
class Losses:
    """By every account. Budgets are charged what totals or labels lose, as their owner says; all
    but `labels` hold against whoever may see noisy totals. `how` is as in `Epsilons`."""

    simple: float
    tight: float
    totals: float
    labels: float
    exact: float | None
    how: str


@dataclass(frozen=True)
class Coalition:
    """What so many agents leave who pool their noise; no epsilons where no noise is left."""

    percent: int
    agents: int
    sigma: float
    losses: dict[Level, Losses] | None


def losses(plan: CostPlan, mechanism: Vote | None = None) -> dict[Level, Losses]:
    """Epsilon at each level under every accountant."""
    counted = plan.mechanism if mechanism is None else mechanism
    return {level: _losses(counted, level, plan.delta) for level in Level}


def coalition(plan: CostPlan, roster: Roster, percent: int) -> Coalition:
    """What this part of all agents, rounded up, leaves of a round with just the quorum."""
    agents = -(-roster.agents * percent // 100)
    left = plan.against(agents)
    if left is None:
        return Coalition(percent, agents, 0.0, None)
    return Coalition(percent, agents, math.sqrt(left.variance) / plan.unit, losses(plan, left))


def loss(plan: CostPlan, level: Level, accountant: Accountant) -> float:
    """Epsilon by one accountant; it raises `PlanError` where there is none."""
    counted = [plan.mechanism]
    match accountant:
        case Accountant.SIMPLE:
            return simple_epsilon(counted, level, plan.delta)
        case Accountant.TIGHT:
            return epsilon(counted, level, plan.delta)
        case Accountant.TOTALS | Accountant.LABELS:
            return charged_epsilon(counted, level, plan.delta, Against(accountant))
        case Accountant.EXACT:
            found = _epsilons(plan.mechanism, level, plan.delta)
            if found.exact is None:
                raise PlanError(f"there is no exact epsilon: {found.how}")
            return found.exact


def _losses(vote: Vote, level: Level, delta: float) -> Losses:
    found = _epsilons(vote, level, delta)
    totals, labels = (charged_epsilon([vote], level, delta, against) for against in Against)
    return Losses(found.simple, found.tight, totals, labels, found.exact, found.how)


def _epsilons(vote: Vote, level: Level, delta: float) -> Epsilons:
    """By every account; only what is not lost already is worth minutes of an exact one."""
    tight = epsilon([vote], level, delta)
    if not isinstance(vote, GaussianVote) and tight > MAX_EXACT:
        simple = simple_epsilon([vote], level, delta)
        return Epsilons(simple, tight, None, f"above {MAX_EXACT:g} nothing is protected anyway")
    return epsilons([vote], level, delta)


@dataclass(frozen=True)
class Solved:
    """The best plan that meets a target, and the next one, which does not."""

    plan: CostPlan
    epsilon: float
    beyond: CostPlan
    epsilon_beyond: float


def solve_queries(plan: CostPlan, target: float, level: Level, accountant: Accountant) -> Solved:
    """The most queries whose epsilon is at most `target`."""

    def after(number: int) -> CostPlan:
        return replace(plan, queries=number)

    # A Gaussian's epsilon depends on queries / sigma^2 alone.
    guess = _ideal(target, plan.delta) ** 2 * plan.sigma**2 / float(plan.moved(level))
    start = min(max(math.floor(guess), 1), MAX_PLANNED_QUERIES - 1)
    try:
        return _search(after, start, -1, (1, MAX_PLANNED_QUERIES), target, level, accountant)
    except _TooFar as error:
        if error.met:
            raise PlanError(
                f"epsilon {target:g} is not reached with {MAX_PLANNED_QUERIES} queries: lower sigma"
            ) from error
        raise PlanError(
            f"a single query costs epsilon {round_up(error.epsilon)} by the {accountant} "
            f"accountant, more than {target:g}: raise sigma or epsilon"
        ) from error


def solve_sigma(plan: CostPlan, target: float, level: Level, accountant: Accountant) -> Solved:
    """The least sigma, to four digits, whose epsilon is at most `target`; `plan.sigma` is free."""

    def after(number: int) -> CostPlan:
        return replace(plan, sigma=_sigma(number))

    first, last = _place(plan.least_sigma), _place(plan.largest_sigma)
    guess = math.sqrt(plan.queries * plan.moved(level)) / _ideal(target, plan.delta)
    start = min(max(_place(guess), first + 1), last)
    try:
        return _search(after, start, 1, (first, last), target, level, accountant)
    except _TooFar as error:
        if error.met:
            raise PlanError(
                f"epsilon {target:g} is met with any noise: a sigma of {plan.least_sigma:g} "
                f"already gives {round_up(error.epsilon)}"
            ) from error
        raise PlanError(
            f"a sigma of {_sigma(last):g}, the largest, still costs epsilon "
            f"{round_up(error.epsilon)}: ask fewer queries"
        ) from error


class _TooFar(Exception):
    """Every number in range meets the target, or none does."""

    def __init__(self, met: bool, epsilon: float) -> None:
        super().__init__(met, epsilon)
        self.met = met
        self.epsilon = epsilon


def _search(
    after: Callable[[int], CostPlan],
    start: int,
    safer: int,
    limits: tuple[int, int],
    target: float,
    level: Level,
    accountant: Accountant,
) -> Solved:
    """Neighbouring numbers of which one meets the target and the next does not.

    `safer` is the direction in which epsilon falls. Steps grow from `start` until the target
    lies between two numbers, then halve.
    """
    known: dict[int, float] = {}

    def meets(number: int) -> bool:
        known[number] = loss(after(number), level, accountant)
        return known[number] <= target

    met = meets(start)
    direction, step, here = (-safer if met else safer), 1, start
    while True:
        there = min(max(here + direction * step, limits[0]), limits[1])
        if there == here:
            raise _TooFar(met, known[here])
        if meets(there) is not met:
            break
        here, step = there, 2 * step
    good, bad = (here, there) if met else (there, here)
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        if meets(middle):
            good = middle
        else:
            bad = middle
    return Solved(after(good), known[good], after(bad), known[bad])


def _ideal(target: float, delta: float) -> float:
    """The mu at which a Gaussian mechanism costs `target`, roughly: where to begin a search."""
    low, high = 1e-9, 1.0
    while gaussian_exact_epsilon(high, delta) < target:
        high *= 2
    for _ in range(60):
        middle = math.sqrt(low * high)
        if gaussian_exact_epsilon(middle, delta) < target:
            low = middle
        else:
            high = middle
    return low


def _sigma(place: int) -> float:
    """All numbers of four digits in order, by their place."""
    decade, offset = divmod(place, _PER_DECADE)
    return float(f"{_FIRST + offset}e{decade}")


def _place(sigma: float) -> int:
    """The place of the largest number of four digits up to `sigma`."""
    digits, _, exponent = f"{sigma:.{_DIGITS - 1}e}".partition("e")
    decade = int(exponent) - _DIGITS + 1
    place = _PER_DECADE * decade + round(float(digits) * _FIRST) - _FIRST
    return place if _sigma(place) <= sigma else place - 1
