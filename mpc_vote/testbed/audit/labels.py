"""An attack on the labels that votes release, and what it proves about epsilon.

The rounds are not verified: agents add the noise.

Two worlds that the claim calls neighbours: at agent level one agent votes, or its ballot is zeroed
and its noise stays; at instance level one record changes, so that one vote moves. In both, whoever
colludes adds no noise, and no more agents than the quorum are counted: all that the claim allows.
Votes are cast many times in each world, where the one ballot decides, and somebody guesses the
world from the labels. An event has probability P in one world and Q in the other. Two tests:

- (epsilon, delta): the claim is the epsilon that is charged, at delta. It means P <= e^epsilon Q +
  delta, so epsilon >= log((P - delta) / Q), whatever the mechanism is. Rare events tell most.
- f-DP: the claim is the noise itself, Skellam of the claimed variance on totals of the claimed
  sensitivity, which is mu-GDP (`mpc_vote.privacy.tradeoff`). It means P <= Phi(Phi^-1(Q) + mu), so
  mu >= Phi^-1(P) - Phi^-1(Q). Frequent events tell as much as rare ones, so fewer runs refute a
  claim. The epsilon beside it is what Gaussian noise of that mu loses at delta. It is a lower bound
  of what is lost only if the true noise is Gaussian-like as well, whatever its variance; that the
  claim is refuted does not rest on this.

The event is that of a round's labels at least, or less than, so many are the class that the ballot
is for. With two classes, queries that are alike and independent noise every label is a toss of a
coin whose bias depends on the world, and a threshold on their number is the likelihood-ratio test,
the best there is (Neyman and Pearson). A bound from single queries is about one query only; that of
a round is about all its queries together.

Half of the runs choose an event for each test, the other half judge it: P is bounded from below and
Q from above by Clopper and Pearson, "The use of confidence or fiducial limits" (1934), each with
half of the error that the test is allowed; all tests together are allowed what is asked for (the
union bound). If the claim holds, runs are independent, since noise is, and a false alarm is no
likelier than the allowed error. Noise that several queries share may spoil the confidence, but is a
fault itself. No alarm proves nothing: the bound is that of one attack, and of so many runs.

Jagielski, Ullman and Oprea, "Auditing Differentially Private Machine Learning" (arXiv 2006.07709);
Nasr, Song, Thakurta, Papernot and Carlini, "Adversary Instantiation" (arXiv 2101.04535); Nasr et
al., "Tight Auditing of Differentially Private Machine Learning" (arXiv 2302.07956), Section 4.
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Protocol

import numpy as np

from mpc_vote.app.config import Method
from mpc_vote.privacy.accountant import gaussian_exact_epsilon
from mpc_vote.privacy.charging import charged_epsilon
from mpc_vote.privacy.mechanisms import FloatArray, Level, SkellamVote
from mpc_vote.privacy.noise import SkellamSampler
from mpc_vote.privacy.tradeoff import mu_of, vote_mu
from mpc_vote.simulation.vote import count, simulated_spec
from mpc_vote.voting.ballots import ABSTAIN, KNN_COUNT, ONE_HOT, BallotKind, IntArray
from mpc_vote.voting.spec import Spec

WITHOUT, WITH = 0, 1
"""The worlds: without the one ballot or record, and with it."""

WORLDS = (WITHOUT, WITH)
MIN_RUNS = 40
"""Fewer runs in each world can't tell worlds apart."""

# Leads to try: this many standard deviations of the lead's noise to each side, in half steps.
_REACH = 4
# Numbers in a batch of ballots: what memory holds for every agent.
_BATCH_CELLS = 1 << 18
# One standard deviation: how far a rate may be off when an event is chosen by it.
_DOUBT = 0.16
# The incomplete beta function is right to 1e-7 of itself here; see the tests.
_CAUTION = 1 - 1e-6
_STEPS = 100_000

Noise = Callable[[Spec, int, tuple[int, int, int]], IntArray]
Tell = Callable[[int, str], None]


@dataclass(frozen=True)
class AttackScenario:
    """Who votes what; the victim has place 0, and those who collude come next.

    The others' votes, and those of the victim that are the same in both worlds, are a pool. A
    placement is the number of them that are for the target class; the rest are spread over its
    rivals. In the world WITH, the votes that make the difference are for the target too.
    """

    level: Level
    kind: BallotKind
    k: int
    classes: int
    voters: int
    collusion: int

    @classmethod
    def of(
        cls,
        level: Level,
        method: Method,
        neighbours: int,
        classes: int,
        voters: int,
        collusion: int,
    ) -> AttackScenario:
        """The scenario for agents that vote by this method."""
        if method is Method.AE:
            return cls(level, ONE_HOT, 1, classes, voters, collusion)
        return cls(level, KNN_COUNT, neighbours, classes, voters, collusion)

    @property
    def public_k(self) -> int:
        """An agent's k as the roster names it."""
        return self.k if self.kind.needs_k else 0

    @property
    def pool(self) -> int:
        """Votes that are the same in both worlds."""
        return (self.voters - 1) * self.k + (self.k - 1 if self.level is Level.INSTANCE else 0)

    @property
    def tie(self) -> int:
        """The placement at which the worlds lie as evenly as can be around a tie."""
        return self._placement(0.0)

    def is_noisy(self, place: int) -> bool:
        """Whether the agent at this place adds noise: known noise may as well be zero."""
        return not 1 <= place <= self.collusion

    def placements(self, sigma: float) -> list[int]:
        """Placements from where the target hardly ever wins to where it hardly ever loses."""
        leads = np.arange(-2 * _REACH, 2 * _REACH + 1) / 2 * math.sqrt(2) * sigma
        return sorted({self._placement(float(lead)) for lead in leads})

    def votes(self, place: int, world: int, placements: IntArray, targets: IntArray) -> IntArray:
        """What the voter at this place says of each query."""
        cases, which = np.unique(placements * self.classes + targets, return_inverse=True)
        counts = np.array(
            [self._counts(place, world, *divmod(int(case), self.classes)) for case in cases]
        )
        if self.kind is ONE_HOT:
            # What is left out has no class.
            counts = np.where(counts.any(axis=1), counts.argmax(axis=1), ABSTAIN)
        said: IntArray = counts[which]
        return said

    def _placement(self, lead: float) -> int:
        """Where the target leads its rivals by so much in the middle between the worlds."""
        if self.level is Level.AGENT:
            lead -= self.k / 2
        wanted = (lead * (self.classes - 1) + self.pool) / self.classes
        return min(self.pool, max(0, round(wanted)))

    def _counts(self, place: int, world: int, placement: int, target: int) -> IntArray:
        """How many votes one agent has for each class."""
        votes = np.zeros(self.classes, dtype=np.int64)
        rival = (target + 1) % self.classes
        if place > 0:
            start, end = (place - 1) * self.k, place * self.k
        elif self.level is Level.INSTANCE:
            start, end = (self.voters - 1) * self.k, self.pool
            votes[target if world == WITH else rival] = 1
        else:
            start = end = 0
            votes[target] = self.k if world == WITH else 0
        # The pool lies in a row, the target's votes first, and each agent has a stretch of it.
        each, more = divmod(self.pool - placement, self.classes - 1)
        sizes = [placement, *(each + (place < more) for place in range(self.classes - 1))]
        ends = np.cumsum(sizes)
        held = np.minimum(ends, end) - np.maximum(ends - sizes, start)
        votes[(target + np.arange(self.classes)) % self.classes] += np.maximum(held, 0)
        return votes


class Statistic(enum.Enum):
    """What is held against a claim; each has a measure of its own, epsilon or mu."""

    EPSILON = "(epsilon, delta)"
    TRADE_OFF = "f-DP"

    def measure(self, right: float, wrong: float, delta: float) -> float:
        """The least that explains an event of such a rate in one world, and in the other.

        Not above zero where nothing needs to be explained.
        """
        if self is Statistic.TRADE_OFF:
            return mu_of(right, wrong)
        return math.log((right - delta) / wrong) if right > delta else -math.inf

    def epsilon(self, measured: float, delta: float) -> float:
        """What is lost at delta, by this measure."""
        return gaussian_exact_epsilon(measured, delta) if self is Statistic.TRADE_OFF else measured


@dataclass(frozen=True)
class AuditedRounds:
    """What is audited: rounds at `sigma`, against what is claimed for `claimed_sigma`."""

    scenario: AttackScenario
    agents: int
    parties: int
    queries: int
    sigma: float
    claimed_sigma: float
    delta: float

    def names(self) -> list[str]:
        """The roster: the voters, and then those who stay away."""
        return [f"agent-{place}" for place in range(self.agents)]

    def spec(self, queries: int, sigma: float) -> Spec:
        """The spec of a round, as the coordinator would make it."""
        scenario = self.scenario
        return simulated_spec(
            scenario.kind,
            queries,
            scenario.classes,
            dict.fromkeys(self.names(), scenario.public_k),
            sigma,
            quorum=scenario.voters,
            collusion=scenario.collusion,
            parties=self.parties,
        )

    def claimed(self, statistic: Statistic, queries: int) -> float:
        """What a round loses at most: the epsilon that is charged, or the mu of its noise."""
        mechanism, level = self.spec(queries, self.claimed_sigma).mechanism, self.scenario.level
        assert isinstance(mechanism, SkellamVote), "the rounds are not verified"
        if statistic is Statistic.TRADE_OFF:
            return vote_mu(mechanism, level)
        return charged_epsilon([mechanism], level, self.delta)


class LabelSource(Protocol):
    """Where labels come from."""

    def room(self, queries: int) -> int:
        """How many rounds of so many queries one call may ask for."""
        ...

    async def labels(self, world: int, placement: int, targets: IntArray) -> IntArray:
        """The labels of rounds, (rounds, queries), with these target classes."""
        ...


def skellam(spec: Spec, place: int, shape: tuple[int, int, int]) -> IntArray:
    """The noise of the agent at this place on rounds, queries and classes, as agents draw it."""
    return SkellamSampler(spec.agent_variance).sample(shape)


class LocalVotes:
    """Votes in this process, with everything of the service but its network.

    Ballots, noise, sharing, the parties' sums and the secure argmax are the service's own code.
    Rounds are done many at a time. `noise` is for planting faults.
    """

    def __init__(self, case: AuditedRounds, noise: Noise = skellam) -> None:
        self._case = case
        self._noise = noise
        self._spec = cache(case.spec)

    def room(self, queries: int) -> int:
        return max(1, _BATCH_CELLS // (queries * self._case.scenario.classes))

    async def labels(self, world: int, placement: int, targets: IntArray) -> IntArray:
        return await asyncio.to_thread(self._labels, world, placement, targets)

    def _labels(self, world: int, placement: int, targets: IntArray) -> IntArray:
        scenario, (rounds, queries) = self._case.scenario, targets.shape
        classes, rows = scenario.classes, targets.size
        spec = self._spec(queries, self._case.sigma)
        placements = np.full(rows, placement)

        def noisy(place: int) -> IntArray:
            votes = scenario.votes(place, world, placements, targets.reshape(-1))
            ballot = spec.encode(self._case.names()[place], votes)
            if not scenario.is_noisy(place):
                return ballot
            drawn = self._noise(spec, place, (rounds, queries, classes))
            return ballot + drawn.reshape(rows, classes)

        names = enumerate(self._case.names()[: scenario.voters])
        labels = count(spec, ((name, noisy(place)) for place, name in names))
        return labels.reshape(rounds, queries)


@dataclass(frozen=True)
class ThresholdEvent:
    """An event: the number of a round's labels that are the target reaches a threshold or not."""

    placement: int
    threshold: int
    above: bool
    likelier: int

    def hits(self, counts: IntArray) -> int:
        """In how many rounds it happens."""
        return int(np.sum((counts >= self.threshold) == self.above))


@dataclass(frozen=True)
class Finding:
    """What one attack found by one test, in the test's measure: a lower bound and what is claimed.

    `most` is the largest lower bound that so many runs can show.
    """

    statistic: Statistic
    queries: int
    runs: int
    event: ThresholdEvent
    hits: tuple[int, int]
    found: float
    most: float
    claimed: float
    delta: float

    @property
    def violated(self) -> bool:
        """Whether the claim is refuted."""
        return self.found > self.claimed

    @property
    def lower(self) -> float:
        """The lower bound as an epsilon at delta."""
        return self.statistic.epsilon(self.found, self.delta)

    @property
    def upper(self) -> float:
        """The claim as an epsilon at delta."""
        return self.statistic.epsilon(self.claimed, self.delta)

    @property
    def ceiling(self) -> float:
        """The largest lower bound of so many runs, as an epsilon at delta."""
        return self.statistic.epsilon(self.most, self.delta)


async def audit(
    case: AuditedRounds,
    source: LabelSource,
    votes: int,
    confidence: float,
    tell: Tell = lambda _votes, _what: None,
) -> list[Finding]:
    """Attacks single queries and whole rounds, with so many votes in each world for each.

    All bounds hold together with this confidence. `tell` hears of votes that were cast.
    """
    check(case, votes)
    sizes = sorted({1, case.queries})
    allowed = (1 - confidence) / (len(sizes) * len(Statistic))
    return [
        finding
        for size in sizes
        for finding in await _attack(case, source, size, votes // size, allowed, tell)
    ]


def check(case: AuditedRounds, votes: int) -> None:
    """Refuses what no round could be made of, or what could not be judged."""
    for sigma in (case.sigma, case.claimed_sigma):
        case.spec(case.queries, sigma)
    if votes // case.queries < MIN_RUNS:
        raise ValueError(
            f"{votes} votes make {votes // case.queries} rounds of {case.queries} queries in each "
            f"world, and {MIN_RUNS} are needed: ask for more votes, or for fewer queries"
        )


def least(
    statistic: Statistic, likelier: int, other: int, runs: int, delta: float, allowed: float
) -> float:
    """The least loss that explains how often an event came in the worlds, of so many runs each.

    Too high with probability `allowed` at most.
    """
    right, wrong = min_rate(likelier, runs, allowed / 2), max_rate(other, runs, allowed / 2)
    return max(0.0, statistic.measure(right, wrong, delta))


def min_rate(hits: int, runs: int, allowed: float) -> float:
    """Clopper and Pearson's lower limit: smaller rates give so many hits with less than allowed."""
    low, high = 0.0, hits / runs
    while hits and low < (middle := (low + high) / 2) < high:
        if _incomplete_beta(middle, hits, runs - hits + 1) > allowed * _CAUTION:
            high = middle
        else:
            low = middle
    return low


def max_rate(hits: int, runs: int, allowed: float) -> float:
    """Clopper and Pearson's upper limit."""
    return 1 - min_rate(runs - hits, runs, allowed)


async def _attack(
    case: AuditedRounds, source: LabelSource, queries: int, runs: int, allowed: float, tell: Tell
) -> list[Finding]:
    """Chooses an event for each test by half of the runs, judges it by the other half."""
    scenario = case.scenario
    # One query may tell most where an outcome is rare, many where two classes tie.
    at_tie = queries > 1 and scenario.classes == 2
    placements = [scenario.tie] if at_tie else scenario.placements(case.claimed_sigma)
    each = max(1, runs // 2 // len(placements))
    judging = runs - each * len(placements)
    options: dict[Statistic, list[tuple[float, ThresholdEvent]]] = {
        statistic: [] for statistic in Statistic
    }
    for placement in placements:
        counts = [
            await _counts(case, source, world, placement, each, queries, tell) for world in WORLDS
        ]
        for statistic, found in options.items():
            found.append(
                _choose(statistic, counts, placement, queries, judging, case.delta, allowed)
            )
    events = {
        statistic: max(found, key=lambda one: one[0])[1] for statistic, found in options.items()
    }
    # Tests that chose the same placement share its runs; otherwise each has half of them.
    chosen = sorted({event.placement for event in events.values()})
    judged = {
        placement: [
            await _counts(case, source, world, placement, judging // len(chosen), queries, tell)
            for world in WORLDS
        ]
        for placement in chosen
    }
    return [
        _judge(case, by, event, judged[event.placement], queries, allowed)
        for by, event in events.items()
    ]


def _judge(
    case: AuditedRounds,
    statistic: Statistic,
    event: ThresholdEvent,
    counts: Sequence[IntArray],
    queries: int,
    allowed: float,
) -> Finding:
    """What an event that was chosen before proves."""
    hits, runs = [event.hits(of) for of in counts], len(counts[WITHOUT])
    likelier, other = hits[event.likelier], hits[1 - event.likelier]
    return Finding(
        statistic=statistic,
        queries=queries,
        runs=runs,
        event=event,
        hits=(hits[WITHOUT], hits[WITH]),
        found=least(statistic, likelier, other, runs, case.delta, allowed),
        most=least(statistic, runs, 0, runs, case.delta, allowed),
        claimed=case.claimed(statistic, queries),
        delta=case.delta,
    )


async def _counts(
    case: AuditedRounds,
    source: LabelSource,
    world: int,
    placement: int,
    rounds: int,
    queries: int,
    tell: Tell,
) -> IntArray:
    """How many labels of each round are the target. Targets take turns over a round's queries.

    So noise that is shared by queries shows: without the ballot it can't favour all targets.
    """
    targets = np.arange(queries, dtype=np.int64) % case.scenario.classes
    size = "single queries" if queries == 1 else f"rounds of {queries} queries"
    parts = []
    for start in range(0, rounds, room := source.room(queries)):
        batch = np.tile(targets, (min(room, rounds - start), 1))
        labels = await source.labels(world, placement, batch)
        parts.append(np.sum(labels == batch, axis=1))
        tell(batch.size, f"{size}, {'with' if world == WITH else 'without'} the vote")
    return np.concatenate(parts)


def _choose(
    statistic: Statistic,
    counts: Sequence[IntArray],
    placement: int,
    queries: int,
    judging: int,
    delta: float,
    allowed: float,
) -> tuple[float, ThresholdEvent]:
    """The event that promises most, and what it promises."""
    runs = len(counts[WITHOUT])
    reached = [np.bincount(of, minlength=queries + 1)[::-1].cumsum()[::-1] for of in counts]
    options = []
    for above in (True, False):
        rates = [(of if above else runs - of) / runs for of in reached]
        for likelier in WORLDS:
            # Doubted first for what few runs make it look, then limited as it will be judged.
            doubted, _ = _about(rates[likelier], runs, _DOUBT)
            least, _ = _about(np.maximum(doubted, 0), judging, allowed / 2)
            _, doubted = _about(rates[1 - likelier], runs, _DOUBT)
            _, most = _about(np.minimum(doubted, 1), judging, allowed / 2)
            promised = [
                statistic.measure(float(right), float(wrong), delta)
                for right, wrong in zip(least, most, strict=True)
            ]
            best = int(np.argmax(promised))
            options.append((promised[best], ThresholdEvent(placement, best, above, likelier)))
    return max(options, key=lambda option: option[0])


def _about(rates: FloatArray, runs: int, allowed: float) -> tuple[FloatArray, FloatArray]:
    """Wilson's limits, good enough to choose by."""
    z = -NormalDist().inv_cdf(allowed)
    scale = 1 + z**2 / runs
    middle = (rates + z**2 / (2 * runs)) / scale
    margin = z / scale * np.sqrt(rates * (1 - rates) / runs + z**2 / (4 * runs**2))
    return middle - margin, middle + margin


def _incomplete_beta(x: float, a: int, b: int) -> float:
    """I_x(a, b): the probability of at least `a` hits in a + b - 1 runs of rate x."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_fraction(1 - x, b, a)
    return _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: int, b: int) -> float:
    """I_x(a, b) by Lentz's continued fraction; Press et al., "Numerical Recipes" (2007), 6.4."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _STEPS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + numerator * d)
            c = 1 + numerator / c
            fraction *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(logs + a * math.log(x) + b * math.log1p(-x)) * fraction / a
