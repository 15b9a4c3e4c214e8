"""How far one record, or one agent, moves a ballot: measured by attack, against what is claimed.

Every account of a vote starts from a bound on that move (`mpc_vote.voting.ballots`), and no noise
makes up for one that is wrong. Here an agent's own voter answers hostile queries on neighbouring
data sets (`mpc_vote.testbed.audit.hostile`), its ballots are shared and added up by parties as in a
round, verified or not, and what they add up to is compared. A move beyond the claim is a fault,
with no statistics about it; moves within it prove nothing about queries that were not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters import Voter
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.simulation.vote import simulated_spec, totals
from mpc_vote.testbed.audit.hostile import AdjacentDatasets, DataShape, neighbours, queries
from mpc_vote.voting.ballots import BallotKind, IntArray
from mpc_vote.voting.spec import Spec

_AGENT = "agent"


@dataclass(frozen=True)
class VoterSetup:
    """A way to vote, as an agent may be set up: its name, what it casts, and how it is made."""

    voter: str
    kind: BallotKind
    terrain: DataShape
    make: Callable[[Dataset], Voter]
    features: str = ""
    reach: float | None = None
    tau: int = 0

    def spec(self, rows: int, verified: bool) -> Spec:
        """A round of so many queries with one such agent; its noise is no part of this."""
        k = self.terrain.k if self.kind.needs_k else 0
        classes, roster = self.terrain.classes, {_AGENT: k}
        return simulated_spec(
            self.kind, rows, classes, roster, 1.0, tau=self.tau, verified=verified
        )


@dataclass(frozen=True)
class ObservedSensitivity:
    """The most that a query's cells moved, in units: each norm's largest value over all queries."""

    l1: int = 0
    l2_squared: int = 0
    cells: int = 0
    step: int = 0

    @classmethod
    def of(cls, moves: IntArray) -> ObservedSensitivity:
        """Of rows of moves, (queries, cells)."""
        if not moves.size:
            return cls()
        sizes = np.abs(moves)
        return cls(
            int(sizes.sum(axis=1).max()),
            int(np.square(sizes).sum(axis=1).max()),
            int((sizes > 0).sum(axis=1).max()),
            int(sizes.max()),
        )

    def exceeds(self, claimed: Sensitivity) -> bool:
        """Whether it is further than claimed, by any norm that an account may use."""
        return (
            self.l1 > claimed.l1
            or self.l2_squared > claimed.l2_squared
            or (claimed.cells is not None and self.cells > claimed.cells)
            or (claimed.step is not None and self.step > claimed.step)
        )


@dataclass(frozen=True)
class SensitivityFinding:
    """What was found for one way to vote, at one level."""

    style: VoterSetup
    verified: bool
    level: Level
    queries: int
    move: ObservedSensitivity
    claimed: Sensitivity
    fraction_bits: int

    @property
    def exceeded(self) -> bool:
        """Whether the claim is wrong."""
        return self.move.exceeds(self.claimed)


def measure(style: VoterSetup, seed: int = 0) -> list[SensitivityFinding]:
    """Attacks one way to vote, in unverified and, where there are such, in verified rounds."""
    rng = np.random.default_rng(seed)
    return compare(style, neighbours(style.terrain, rng), rng)


def compare(
    style: VoterSetup, pairs: Iterable[AdjacentDatasets], rng: np.random.Generator
) -> list[SensitivityFinding]:
    """What hostile queries find about these pairs."""
    specs = [style.spec(1, False)]
    if specs[0].can_be_verified:
        specs.append(style.spec(1, True))
    # By spec, the ballots on one data set and on the other.
    cast: list[tuple[list[IntArray], list[IntArray]]] = [([], []) for _ in specs]
    voters: dict[int, tuple[Dataset, Voter]] = {}
    for pair in pairs:
        batches = queries(pair, style.terrain, rng)
        for side, data in enumerate((pair.one, pair.other)):
            if id(data) not in voters:
                voters[id(data)] = (data, style.make(data))
            voter = voters[id(data)][1]
            for votes in (voter.vote(batch, style.kind) for batch in batches):
                for spec, ballots in zip(specs, cast, strict=True):
                    ballots[side].append(spec.encode(_AGENT, votes))
    return [
        found
        for spec, ballots in zip(specs, cast, strict=True)
        for found in _judge(style, spec.message.verified, *map(np.concatenate, ballots))
    ]


def _judge(
    style: VoterSetup, verified: bool, one: IntArray, other: IntArray
) -> list[SensitivityFinding]:
    """Adds up distinct rows as parties do, and compares those of neighbours, and with nothing."""
    distinct, rows = np.unique(np.concatenate([one, other]), axis=0, return_inverse=True)
    spec = style.spec(len(distinct), verified)
    added = totals(spec, {_AGENT: distinct})
    before, after = added[rows[: len(one)]], added[rows[len(one) :]]
    moves = {
        Level.INSTANCE: ObservedSensitivity.of(before - after),
        Level.AGENT: ObservedSensitivity.of(added),
    }
    bits = spec.message.fraction_bits
    return [
        SensitivityFinding(
            style, verified, level, len(one), move, spec.mechanism.sensitivity(level), bits
        )
        for level, move in moves.items()
    ]
