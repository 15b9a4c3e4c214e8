"""What `mpc-vote plan` computes: labels and epsilons for a range of noise and of queries."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mpc_vote.privacy import coins
from mpc_vote.privacy.charging import Against
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.voting.ballots import BallotKind
from mpc_vote.voting.costing import (
    MIN_SIGMA,
    Accountant,
    CostPlan,
    Noise,
    Roster,
    loss,
    solve_sigma,
)
from mpc_vote.voting.forecast import Forecast, Poll, forecast

MAX_AGENTS_SOUGHT = 1 << 16

# Noise in parts of all votes, where a user names none: from hardly any to what drowns a split vote.
_PARTS = (0.05, 0.1, 0.2)


@dataclass(frozen=True)
class Federation:
    """Who votes: `ks` has the public k of each agent, 0 where there are no neighbours."""

    kind: BallotKind
    classes: int
    ks: tuple[int, ...]
    tau: int | None
    quorum: int
    collusion: int
    participation: float
    turnout: float
    delta: float
    verified: bool
    against: Against

    @property
    def agents(self) -> int:
        """On the roster."""
        return len(self.ks)

    @property
    def votes(self) -> int:
        """On a query, at most."""
        return self.kind.votes(self.ks)

    @property
    def least_sigma(self) -> float:
        """The least noise that can be planned with, in votes."""
        return coins.MIN_SIGMA if self.verified else MIN_SIGMA

    def usual_sigmas(self) -> list[float]:
        """Noise worth a look, in two digits."""
        most = coins.MAX_SIGMA if self.verified else math.inf
        usual = (float(f"{part * self.votes:.2g}") for part in _PARTS)
        return [min(most, max(self.least_sigma, sigma)) for sigma in usual]

    def poll(self, sigma: float) -> Poll:
        """What adds up in a total."""
        return Poll.of(
            self.kind,
            self.classes,
            self.ks,
            sigma=sigma,
            quorum=self.quorum,
            collusion=self.collusion,
            verified=self.verified,
            participation=self.participation,
        )

    def forecast(self, sigma: float, agreement: float) -> Forecast:
        """The share of right labels."""
        return forecast(self.poll(sigma), agreement, self.turnout)

    def cost(self, sigma: float, queries: int) -> CostPlan:
        """What is accounted; it raises `PlanError` for noise that can't be."""
        return CostPlan(
            ballot=self.kind,
            noise=Noise.COINS if self.verified else Noise.SKELLAM,
            sigma=sigma,
            queries=queries,
            delta=self.delta,
            ks=self.ks if self.kind.needs_k else (),
            tau=self.tau,
            roster=Roster(self.agents, self.quorum, self.collusion),
        )

    def epsilon(self, sigma: float, queries: int, level: Level) -> float:
        """As ledgers compute it."""
        return loss(self.cost(sigma, queries), level, Accountant(self.against))

    def sigma_for(self, queries: int, epsilon: float, level: Level) -> float:
        """The least noise, to four digits, for an epsilon."""
        return solve_sigma(
            self.cost(self.least_sigma, queries), epsilon, level, Accountant(self.against)
        ).plan.sigma

    def grown(self, agents: int) -> Federation:
        """The same with so many agents, of the median k."""
        k, part = sorted(self.ks)[self.agents // 2], self.quorum / self.agents
        quorum = max(self.collusion + 1, round(part * agents))
        return replace(self, ks=(k,) * agents, quorum=min(agents, quorum))


@dataclass(frozen=True)
class Cell:
    """One choice of noise and queries: its cost, and its labels at each agreement."""

    queries: int
    sigma: float
    epsilons: Mapping[Level, float]
    forecasts: tuple[Forecast, ...]


def cells(
    federation: Federation,
    choices: Sequence[tuple[int, float]],
    agreements: Sequence[float],
    levels: Sequence[Level] = tuple(Level),
) -> list[Cell]:
    """All choices of queries and sigma, with the epsilons at these levels."""
    return [
        Cell(
            queries,
            sigma,
            {level: federation.epsilon(sigma, queries, level) for level in levels},
            tuple(federation.forecast(sigma, agreement) for agreement in agreements),
        )
        for queries, sigma in choices
    ]


def agents_needed(federation: Federation, sigma: float, agreement: float, share: float) -> int:
    """About how many agents it takes for this share of right labels at best; 0: too many."""
    low, high = federation.agents, federation.agents
    while federation.grown(high).forecast(sigma, agreement).high < share:
        low, high = high, 2 * high
        if high > MAX_AGENTS_SOUGHT:
            return 0
    while high - low > max(1, high // 20):
        middle = (low + high) // 2
        if federation.grown(middle).forecast(sigma, agreement).high < share:
            low = middle
        else:
            high = middle
    return high
