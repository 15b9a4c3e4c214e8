"""What is measured: single cases, grids of them, and the sweeps of the full suite."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mpc_vote.argmax.registry import PAIRWISE, Crypten, EngineKind

PARTIES = 3
QUERIES = 500
CLASSES = 10
# The ring of a verified round of 200 agents with one-hot ballots and sigma 100. Less noise takes a
# smaller one: sigma 25 takes 11 bits.
BITS = 13
# More than a request may have, to see how times grow.
MAX_ROWS = 100_000
NEAR_AND_FAR = (0.0, 40.0)

QUICK_NEAR_AND_FAR = (0.0, 20.0)

# The full suite leaves CrypTen's methods out where a run would take many seconds, and far away
# measures them on the usual shape only.
_CRYPTEN_QUERIES = 2_000
_CRYPTEN_COMPARISONS = 100_000
SUITE_NOTE = (
    f"CrypTen's methods are left out above {_CRYPTEN_QUERIES:,} queries and above "
    f"{_CRYPTEN_COMPARISONS:,} comparisons (queries times pairs of classes for pairwise, queries "
    f"times classes for the others), where a run would take many seconds; far away they are "
    f"measured on {PARTIES} parties, {QUERIES} x {CLASSES} only. Name a shape to have them."
)


@dataclass(frozen=True, order=True)
class NetworkCondition:
    """A network: the round trip between parties and the rate of each link, each direction.

    Without delay parties talk directly over loopback, as fast as it is.
    """

    rtt_ms: float
    rate_mbit: float | None

    @property
    def direct(self) -> bool:
        """Whether no relay stands between the parties."""
        return self.rtt_ms == 0

    def __str__(self) -> str:
        if self.direct:
            return "loopback"
        rate = f" at {self.rate_mbit:g} Mbit/s" if self.rate_mbit else ""
        return f"rtt {self.rtt_ms:g} ms{rate}"


def conditions(rtts: Iterable[float], rates: Iterable[float]) -> list[NetworkCondition]:
    """All combinations, each once; a rate of 0 is none, and it counts where there is a delay."""
    return list(
        dict.fromkeys(
            NetworkCondition(rtt, (rate or None) if rtt else None)
            for rtt, rate in itertools.product(rtts, rates)
        )
    )


@dataclass(frozen=True)
class BenchCase:
    """An engine on one shape under one condition.

    `bits` is the ring of the totals. Groups are the table engine's; where they are None the planner
    chooses them by the measured round trip, as the service does.
    """

    engine: EngineKind
    parties: int
    queries: int
    classes: int
    bits: int
    rtt_ms: float
    rate_mbit: float | None
    groups: tuple[int, ...] | None = None
    two_rounds: bool = False

    @property
    def crypten(self) -> bool:
        """Whether it is one of CrypTen's own methods."""
        return isinstance(self.engine, Crypten)

    @property
    def family(self) -> str:
        """The engine, whatever its method."""
        return "crypten" if self.crypten else self.engine.name

    @property
    def condition(self) -> NetworkCondition:
        """The network."""
        return NetworkCondition(self.rtt_ms, self.rate_mbit)

    @property
    def shape(self) -> tuple[int, int, int, float, float | None]:
        """What engines are compared on."""
        return self.parties, self.queries, self.classes, self.rtt_ms, self.rate_mbit

    @property
    def method(self) -> str:
        """CrypTen's method, or the table engine's groups."""
        if self.crypten:
            return self.engine.name
        if self.groups is None:
            return "as planned"
        return self.engine.make(self.bits, self.groups, self.two_rounds).name.removeprefix(
            f"{self.engine.name} "
        )

    def __str__(self) -> str:
        return (
            f"{self.family} {self.method}, {self.parties} parties, "
            f"{self.queries} x {self.classes}, {self.condition}"
        )


def grid(
    engines: Iterable[EngineKind],
    parties: Iterable[int],
    queries: Iterable[int],
    classes: Iterable[int],
    networks: Iterable[NetworkCondition],
    bits: int,
) -> list[BenchCase]:
    """Every engine on every shape under every condition."""
    return [
        BenchCase(
            engine,
            parties=members,
            queries=rows,
            classes=columns,
            bits=engine.ring_bits((1 << (bits - 2)) - 1),
            rtt_ms=network.rtt_ms,
            rate_mbit=network.rate_mbit,
        )
        for network, members, rows, columns, engine in itertools.product(
            networks, parties, queries, classes, engines
        )
    ]


def suite(engines: Sequence[EngineKind], rates: Sequence[float], bits: int) -> list[BenchCase]:
    """The sweeps for the plots: one dimension at a time around the usual shape."""
    distances = conditions([0.0, 10.0, 20.0, 40.0, 80.0], rates)
    both = conditions(NEAR_AND_FAR, rates)
    sweeps = [
        grid(engines, [PARTIES], [QUERIES], [CLASSES], distances, bits),
        grid(engines, [PARTIES], [1, 100, 500, 2_000, 10_000], [CLASSES], both, bits),
        grid(engines, [PARTIES], [QUERIES], [2, 5, 10, 20, 50, 100, 1_000], both, bits),
        grid(engines, [2, 3, 4, 5], [QUERIES], [CLASSES], both, bits),
    ]
    wanted = dict.fromkeys(itertools.chain(*sweeps))
    return [case for case in wanted if not case.crypten or _bearable(case)]


def _bearable(case: BenchCase) -> bool:
    usual = (case.parties, case.queries, case.classes) == (PARTIES, QUERIES, CLASSES)
    if not (usual or case.condition.direct):
        return False
    opponents = (case.classes - 1) / 2 if case.engine is PAIRWISE else 1
    comparisons = case.queries * case.classes * opponents
    return case.queries <= _CRYPTEN_QUERIES and comparisons <= _CRYPTEN_COMPARISONS
