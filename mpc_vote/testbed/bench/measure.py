"""Repeated measurements and their medians.

All cases of a condition take turns, repeat after repeat and in changing order, so that a machine
that drifts does so for all alike; the first turn warms up and is not counted. A repeat takes as
long as its slowest party. Medians stand for the usual case, the minimum for an idle machine, the
quartiles for the noise.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import psutil

from mpc_vote.testbed.bench.cases import BenchCase, NetworkCondition
from mpc_vote.testbed.bench.committee import BenchCommittee, CommitteeRun
from mpc_vote.testbed.bench.jobs import reveal

# Part of the memory that is free which preprocessing may fill.
_MEMORY_PART = 0.5
_GIB = 1 << 30


@dataclass
class CaseRuns:
    """A case's repeats, and a sentence on each that got labels wrong; warming up counts there."""

    case: BenchCase
    runs: list[CommitteeRun] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class BenchRow:
    """A case's figures; `mpc_vote.testbed.bench.report` says what they mean."""

    engine: str
    method: str
    parties: int
    queries: int
    classes: int
    bits: int
    rtt_ms: float
    rtt_measured_ms: float
    rate_mbit: float | None
    rounds: int
    online_bytes_per_party: int
    online_bytes_per_row_and_peer: float
    frame_bytes_per_party: int
    dealer_bytes: int
    seconds_median: float
    seconds_min: float
    seconds_quartiles: tuple[float, float]
    cpu_seconds_per_party: float
    peak_memory_bytes: int
    repeats: int
    correct: bool
    against_best_crypten: float | None = None

    @property
    def crypten(self) -> bool:
        """Whether it is one of CrypTen's own methods."""
        return self.engine == "crypten"

    @property
    def shape(self) -> tuple[int, int, int, float, float | None]:
        """What engines are compared on."""
        return self.parties, self.queries, self.classes, self.rtt_ms, self.rate_mbit


@dataclass
class BenchResults:
    """The figures of all cases, what was left out, and which labels are wrong."""

    rows: list[BenchRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class MeasurementStep:
    """Where a condition's measurement is: the case that comes next, and its repeat; 0 warms up."""

    case: BenchCase
    repeat: int


Tell = Callable[[MeasurementStep], None]


async def measure(
    committee: BenchCommittee, cases: Sequence[BenchCase], repeats: int, tell: Tell
) -> BenchResults:
    """Measures all cases, condition by condition."""
    results = BenchResults()
    for condition in dict.fromkeys(case.condition for case in cases):
        committee.connect(condition)
        here = await planned(committee, [c for c in cases if c.condition == condition])
        too_large = await oversized(committee, here)
        results.notes += too_large.values()
        fitting = [case for case in here if case not in too_large]
        for measured in await interleaved(committee, fitting, repeats, tell):
            results.rows.append(summarise(measured))
            results.mistakes += measured.mistakes
    results.rows = against_best_crypten(results.rows)
    return results


async def planned(committee: BenchCommittee, cases: Iterable[BenchCase]) -> list[BenchCase]:
    """The cases with the schedule that the planner chooses by the round trip measured now."""
    trips: dict[tuple[NetworkCondition, int], float] = {}
    chosen = []
    for case in cases:
        if not case.crypten and case.groups is None:
            network = (case.condition, case.parties)
            if network not in trips:
                trips[network] = await committee.round_trip(*network)
            schedule = case.engine.schedule(
                case.bits, case.queries, case.classes, case.parties, trips[network]
            )
            case = replace(case, groups=schedule.groups, two_rounds=schedule.two_rounds)
        chosen.append(case)
    return chosen


async def oversized(committee: BenchCommittee, cases: Iterable[BenchCase]) -> dict[BenchCase, str]:
    """The cases whose preprocessing would not fit in memory, and a sentence on each."""
    room = _MEMORY_PART * psutil.virtual_memory().available
    refused = {}
    for case in cases:
        need = case.parties * await committee.preprocessing_bytes(case)
        if need > room:
            refused[case] = (
                f"{case}: left out, for its preprocessing takes {need / _GIB:.1f} GiB where there "
                f"is room for {room / _GIB:.1f} GiB"
            )
    return refused


async def interleaved(
    committee: BenchCommittee, cases: Iterable[BenchCase], repeats: int, tell: Tell
) -> list[CaseRuns]:
    """Measures cases in turns, after one turn that warms up."""
    measured = [CaseRuns(case) for case in cases]
    for repeat in range(repeats + 1):
        # In another order each turn, or the same case would always come after the same other.
        for one in random.Random(repeat).sample(measured, len(measured)):
            tell(MeasurementStep(one.case, repeat))
            run = await committee.run(one.case, repeat)
            if wrong := mistake(run):
                one.mistakes.append(f"{one.case}: {wrong}")
            if repeat > 0:
                one.runs.append(run)
    return measured


def mistake(run: CommitteeRun) -> str | None:
    """What is wrong with the labels, if anything is."""
    got, want = reveal(run.job, run.outcomes), run.job.winners()
    wrong = np.flatnonzero(got != want)
    if not wrong.size:
        return None
    row = int(wrong[0])
    return (
        f"{wrong.size} of {want.size} labels are wrong in repeat {run.job.repeat}; the first is "
        f"row {row}, which got class {got[row]} where {want[row]} wins"
    )


def summarise(measured: CaseRuns) -> BenchRow:
    """The figures of a case over its repeats."""
    case, runs = measured.case, measured.runs
    outcomes = [outcome for run in runs for outcome in run.outcomes]
    seconds = [max(outcome.seconds for outcome in run.outcomes) for run in runs]
    sent = max(outcome.bytes_sent for outcome in outcomes)
    by_party = zip(*(run.outcomes for run in runs), strict=True)
    return BenchRow(
        engine=case.family,
        method=case.method,
        parties=case.parties,
        queries=case.queries,
        classes=case.classes,
        bits=case.bits,
        rtt_ms=case.rtt_ms,
        rtt_measured_ms=1000 * statistics.median(run.round_trip for run in runs),
        rate_mbit=case.rate_mbit,
        rounds=max(outcome.rounds for outcome in outcomes),
        online_bytes_per_party=sent,
        online_bytes_per_row_and_peer=sent / case.queries / (case.parties - 1),
        frame_bytes_per_party=max(outcome.frame_bytes_sent for outcome in outcomes),
        dealer_bytes=max(sum(o.dealer_bytes for o in run.outcomes) for run in runs),
        seconds_median=statistics.median(seconds),
        seconds_min=min(seconds),
        seconds_quartiles=quartiles(seconds),
        cpu_seconds_per_party=max(
            statistics.median(outcome.cpu_seconds for outcome in party) for party in by_party
        ),
        peak_memory_bytes=max(outcome.peak_memory_bytes for outcome in outcomes),
        repeats=len(runs),
        correct=not measured.mistakes,
    )


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """A quarter of the values lies below the first, a quarter above the second."""
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def against_best_crypten(rows: Iterable[BenchRow]) -> list[BenchRow]:
    """Rows with how many times as quick they are as the best of CrypTen's methods of the same
    shape."""
    rows = list(rows)
    best: dict[object, float] = {}
    for row in rows:
        if row.crypten:
            best[row.shape] = min(row.seconds_median, best.get(row.shape, row.seconds_median))
    return [
        replace(row, against_best_crypten=best[row.shape] / row.seconds_median)
        if row.shape in best
        else row
        for row in rows
    ]
