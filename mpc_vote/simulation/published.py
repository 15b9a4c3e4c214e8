"""Every epsilon that Zhu et al. report, beside what the stated settings cost.

The rows are from "Voting-based Approaches for Differentially Private Federated Learning": its
Tables 1 to 3 and its ablation. Its formula is Theorem 5, a Renyi divergence of
Q a D^2 / (2 sigma^2) with D^2 = 1 at agent level, 2 for AE-DPFL and 2/k for kNN-DPFL at instance
level, turned into epsilon by adding log(1/delta) / (a - 1) at the best order a.

A reported number counts as derived if that formula gives it, to the digit printed, at the settings
that the text states. Where the text leaves something open or may mean something else, other
readings are tried: each D^2 of the theorem, with the k of the smallest, the average and the largest
agent; the queries stated, and all of the server's data; the delta stated, and powers of ten. With
so many readings one may match by chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from mpc_vote.privacy.accountant import gaussian_exact_epsilon
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.voting.ballots import KNN_FREQUENCY, MULTI_LABEL, ONE_HOT, BallotKind
from mpc_vote.voting.costing import CostPlan, Losses, Noise, losses

_ROUNDING = 0.05 + 1e-9  # the tables print one decimal
_DELTAS = (1e-3, 1e-4, 1e-5)
_FEDAVG_SIGMA = 0.06


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper, or what its text says of a figure."""

    name: str
    about: str
    level: Level
    delta: float | None


TABLE_1 = PaperTable("Table 1", "digits, CelebA and MNIST, agent level", Level.AGENT, 1e-3)
TABLE_2 = PaperTable("Table 2", "Office-Caltech, instance level", Level.INSTANCE, None)
TABLE_3 = PaperTable("Table 3", "DomainNet (fruit), instance level", Level.INSTANCE, 1e-4)
ABLATION = PaperTable("ablation", "MNIST, a fixed budget at agent level", Level.AGENT, 1e-3)
SECTIONS = (TABLE_1, TABLE_2, TABLE_3, ABLATION)

ASSUMED_DELTA = 1e-4
"""For Table 2, whose delta the paper does not state: that of its other instance-level table."""


@dataclass(frozen=True)
class VoteRow:
    """An epsilon reported for a vote, and what the text says of how it came about.

    `sizes` are the records of each agent where votes are by neighbours, k being 5 % of them;
    `server` is all of the server's data.
    """

    section: PaperTable
    name: str
    reported: float
    sigma: float | None
    queries: int
    ballot: BallotKind = ONE_HOT
    tau: int | None = None
    sizes: tuple[int, ...] = ()
    server: int | None = None

    @property
    def ks(self) -> tuple[int, ...]:
        """The public k of each agent."""
        return tuple(size // 20 for size in self.sizes)

    @property
    def delta(self) -> float:
        """As stated, or assumed."""
        return self.section.delta or ASSUMED_DELTA


@dataclass(frozen=True)
class UnderivedRow:
    """Epsilons that no sufficient settings are given for, and why they can't be derived."""

    section: PaperTable
    name: str
    reported: tuple[float, ...]
    missing: str
    sampling: float | None = None

    @property
    def verdict(self) -> str:
        """In a sentence."""
        verdict = f"can't be derived: {self.missing}"
        if self.sampling is None or self.section.delta is None:
            return verdict
        cost = one_round_of_fedavg(self.sampling, self.section.delta)
        return f"{verdict}; one round alone, as stated, costs {cost:.0f}"


@dataclass(frozen=True)
class CheckedRow:
    """A row of a vote with the result; None where the text does not say how much noise."""

    row: VoteRow
    stated: float | None
    ours: Losses | None
    readings: int
    match: str | None
    sigma_needed: float

    @property
    def derived(self) -> bool:
        """Whether the paper's formula gives the number at the settings it states."""
        return self.stated is not None and _equal(self.stated, self.row.reported)

    @property
    def verdict(self) -> str:
        """In a sentence."""
        row = self.row
        if self.stated is None:
            return (
                f"can't be derived: sigma is not given; its formula needs {self.sigma_needed:.3g} "
                f"for {row.queries} queries"
            )
        if self.derived:
            return "derived from its formula"
        missed = f"its formula gives {self.stated:.3g}"
        if self.match is not None:
            return f"not as stated ({missed}); it matches {self.match}"
        return f"can't be derived: {missed}, and none of {self.readings} readings matches"

    @property
    def holds(self) -> bool | None:
        """Whether the setting really costs no more than reported, derived or not."""
        if self.ours is None:
            return None
        least = self.ours.tight if self.ours.exact is None else self.ours.exact
        return least <= self.row.reported


VOTES = (
    VoteRow(TABLE_1, "AE-DPFL, digits", 3.6, 25, 500, server=3000),
    VoteRow(TABLE_1, "AE-DPFL+DA, digits", 2.8, 30, 500, server=3000),
    VoteRow(TABLE_1, "AE-DPFL, CelebA", 4.0, 50, 600, MULTI_LABEL, tau=4),
    VoteRow(TABLE_1, "AE-DPFL, MNIST", 4.3, None, 3000),
    *(
        VoteRow(
            TABLE_2,
            f"kNN-DPFL, {network}, {target}",
            reported,
            sigma,
            queries,
            KNN_FREQUENCY,
            sizes=sizes,
            server=server,
        )
        for network, sigma, results in (("AlexNet", 15, (3.9, 3.7)), ("ResNet50", 25, (2.8, 2.0)))
        for reported, (target, queries, server, sizes) in zip(
            results,
            (
                ("Webcam", 206, 295, (958, 1123, 157)),
                ("DSLR", 110, 157, (958, 1123, 295)),
            ),
            strict=True,
        )
    ),
    *(
        VoteRow(
            TABLE_3,
            f"kNN-DPFL, {target}",
            reported,
            35,
            queries,
            KNN_FREQUENCY,
            sizes=sizes,
            server=server,
        )
        for target, reported, queries, server, sizes in (
            ("Clipart", 4.4, 657, 938, (1585, 2274, 3500, 3282, 1312)),
            ("Painting", 4.7, 1592, 2274, (938, 1585, 3500, 3282, 1312)),
            ("Real", 4.2, 2297, 3282, (938, 1585, 2274, 3500, 1312)),
        )
    ),
    VoteRow(ABLATION, "AE-DPFL, MNIST, 50 to 800 agents", 5.0, None, 1000),
)

_VOTES = "the votes are not published, and the proof of the bound fails"
_ROUNDS = "rounds not given"
_SAMPLING = "rounds and sampling not given"
_NOISE = "rounds and noise not given"

OTHERS = (
    UnderivedRow(TABLE_1, "AE-DPFL, digits, data-dependent", (2.7,), _VOTES),
    UnderivedRow(TABLE_1, "AE-DPFL+DA, digits, data-dependent", (2.1,), _VOTES),
    UnderivedRow(TABLE_1, "AE-DPFL, MNIST, data-dependent", (4.3,), _VOTES),
    UnderivedRow(TABLE_1, "DP-FedAvg, digits", (3.7,), _ROUNDS, sampling=0.05),
    UnderivedRow(TABLE_1, "DP-FedAvg+DA, digits", (3.6,), _ROUNDS, sampling=0.05),
    UnderivedRow(TABLE_1, "DP-FedAvg, CelebA", (4.0,), _ROUNDS, sampling=0.04),
    UnderivedRow(TABLE_1, "DP-FedAvg, MNIST", (4.3,), _SAMPLING),
    UnderivedRow(TABLE_2, "DP-FedAvg, AlexNet", (46.6, 47.1), _SAMPLING),
    UnderivedRow(TABLE_2, "DP-FedSGD, AlexNet", (4.1, 4.0), _NOISE),
    UnderivedRow(TABLE_2, "DP-FedSGD, AlexNet, less noise", (12.4, 7.9), _NOISE),
    UnderivedRow(TABLE_2, "DP-FedSGD, ResNet50", (4.0, 3.9), _NOISE),
    UnderivedRow(TABLE_3, "DP-FedSGD", (4.4, 4.6, 4.3), _NOISE),
    UnderivedRow(TABLE_3, "DP-FedSGD, less noise", (11.6, 14.6, 11.9), _NOISE),
)


def formula(moved: float, queries: int, sigma: float, delta: float) -> float:
    """Theorem 5 and the conversion of the paper at the best order; `moved` is D^2."""
    rho, wanted = queries * moved / (2 * sigma**2), -math.log(delta)
    return rho + 2 * math.sqrt(rho * wanted)


def check(row: VoteRow) -> CheckedRow:
    """What a row costs, and how its number may have come about."""
    moved = _stated_moved(row)
    wanted = -math.log(row.delta)
    root = math.sqrt(wanted + row.reported) - math.sqrt(wanted)
    needed = math.sqrt(row.queries * moved / 2) / root
    if row.sigma is None:
        return CheckedRow(row, None, None, 0, None, needed)
    stated = formula(moved, row.queries, row.sigma, row.delta)
    readings = list(_readings(row, row.sigma))
    match = next((how for how, value in readings if _equal(value, row.reported)), None)
    plan = CostPlan(
        row.ballot, Noise.GAUSSIAN, row.sigma, row.queries, row.delta, ks=row.ks, tau=row.tau
    )
    ours = losses(plan)[row.section.level]
    return CheckedRow(row, stated, ours, len(readings), match, needed)


def one_round_of_fedavg(sampling: float, delta: float) -> float:
    """The exact epsilon of one round of the paper's Algorithm 1, whose noise is 0.06 clips.

    Balle, Barthe and Gaboardi, "Privacy Amplification by Subsampling" (2018), Theorem 8: where an
    agent takes part with probability q, delta(log(1 + q (e^epsilon - 1))) = q delta(epsilon), which
    the Gaussian mechanism attains.
    """
    whole = gaussian_exact_epsilon(1 / _FEDAVG_SIGMA, delta / sampling)
    return whole + math.log(sampling + (1 - sampling) * math.exp(-whole))


def _stated_moved(row: VoteRow) -> float:
    """D^2 as Theorem 5 has it at the row's level, where agents differ with the smallest k."""
    if row.ballot is MULTI_LABEL:
        return float(row.tau or 0)
    return 2 / min(row.ks) if row.ks else 1.0


def _readings(row: VoteRow, sigma: float) -> Iterator[tuple[str, float]]:
    """What the formula gives when read in other ways, each with how; nearest to the text first."""
    scale = row.tau or 1
    sensitivities = {
        "the agent-level formula": float(scale),
        "the instance-level formula of AE-DPFL": 2.0 * scale,
    }
    if row.sizes:
        shares = [size / 20 for size in row.sizes]
        of_agents = {
            "smallest agent": min(shares),
            "average agent": sum(shares) / len(shares),
            "largest agent": max(shares),
        }
        by_neighbours = {
            f"the formula of kNN-DPFL with the k of the {agent}": 2 / k
            for agent, k in of_agents.items()
        }
        sensitivities = by_neighbours | sensitivities
    stated = row.section.delta
    deltas = dict.fromkeys(_DELTAS if stated is None else (stated, *_DELTAS))
    batches = {"": row.queries}
    if row.server is not None:
        batches[f" over all {row.server} of the server's records"] = row.server
    for (how, moved), (over, queries), delta in product(
        sensitivities.items(), batches.items(), deltas
    ):
        yield f"{how}{over} at delta {delta:g}", formula(moved, queries, sigma, delta)


def _equal(value: float, reported: float) -> bool:
    return abs(value - reported) <= _ROUNDING
