"""The benchmark: a small one for real, its ends, and its statistics on made-up numbers."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest
from rich.console import Console

from mpc_vote.app.config import ConfigError, load
from mpc_vote.app.process import CommandError
from mpc_vote.argmax.registry import ENGINES, PAIRWISE, TABLE, EngineKind
from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.mpc import ring
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.testbed.bench import cases, command, groups, measure, plots, report
from mpc_vote.testbed.bench.cases import BenchCase, NetworkCondition
from mpc_vote.testbed.bench.command import BenchSettings
from mpc_vote.testbed.bench.committee import BenchCommittee, CommitteeRun
from mpc_vote.testbed.bench.jobs import ArgmaxJob, PartyMeasurement
from mpc_vote.testbed.bench.measure import BenchRow, CaseRuns
from mpc_vote.voting import planning
from mpc_vote.voting.ballots import ONE_HOT

COMMAND = [sys.executable, "-m", "mpc_vote.cli", "bench"]
SMALL = ["--parties=2", "--queries=16", "--classes=3", "--engine=table,log_reduction"]
KEYS = {
    "engine",
    "method",
    "parties",
    "queries",
    "classes",
    "bits",
    "rtt_ms",
    "rtt_measured_ms",
    "rate_mbit",
    "rounds",
    "online_bytes_per_party",
    "online_bytes_per_row_and_peer",
    "frame_bytes_per_party",
    "dealer_bytes",
    "seconds_median",
    "seconds_min",
    "seconds_quartiles",
    "cpu_seconds_per_party",
    "peak_memory_bytes",
    "repeats",
    "correct",
    "against_best_crypten",
}
CASE = BenchCase(TABLE, 3, 16, 5, 25, rtt_ms=40.0, rate_mbit=100.0, groups=())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small benchmark as a user runs it."""
    folder = tmp_path_factory.mktemp("bench")
    options = [*SMALL, "--rtt=0,10", "--repeat=2", f"--out={folder}"]
    done = subprocess.run(
        [*COMMAND, *options], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "rtt 10 ms at 100 Mbit/s: repeat 2 of 2" in done.stdout
    assert "every label of every repeat is right" in done.stdout
    return folder


def test_figures_of_a_real_run(results: Path) -> None:
    figures = json.loads((results / "results.json").read_text())
    assert set(figures) == {"machine", "versions", "command", "date", "notes", "rows"}
    assert set(figures["machine"]) == {"cpu", "cores", "memory_bytes", "kernel", "python"}
    assert {"mpc-vote", "numpy", "torch", "crypten", "grpcio"} <= set(figures["versions"])
    assert figures["command"].startswith("mpc-vote bench --parties=2")
    rows = figures["rows"]
    assert [(row["engine"], row["method"], row["rtt_ms"]) for row in rows] == [
        ("table", "all pairs", 0),
        ("crypten", "log_reduction", 0),
        ("table", "two rounds", 10),
        ("crypten", "log_reduction", 10),
    ]
    for row in rows:
        assert set(row) == KEYS
        assert row["correct"] is True
        assert (row["parties"], row["queries"], row["classes"]) == (2, 16, 3)
        assert row["rtt_measured_ms"] >= row["rtt_ms"]
        assert row["rate_mbit"] == (100 if row["rtt_ms"] else None)
        assert row["bits"] == (cases.BITS if row["engine"] == "table" else 64)
        assert row["repeats"] == 2
        # Every round takes half a round trip at least.
        assert row["seconds_min"] >= row["rounds"] * row["rtt_ms"] / 2000
        low, high = row["seconds_quartiles"]
        assert row["seconds_min"] <= low <= row["seconds_median"] <= high
        assert row["cpu_seconds_per_party"] > 0
        assert row["peak_memory_bytes"] > 50e6
        assert row["frame_bytes_per_party"] > row["online_bytes_per_party"]
        per_row = row["online_bytes_per_party"] / 16
        assert row["online_bytes_per_row_and_peer"] == pytest.approx(per_row)
    table, crypten = rows[:2]
    assert table["rounds"] == 3
    assert crypten["rounds"] > 3
    assert crypten["against_best_crypten"] == 1
    ratio = crypten["seconds_median"] / table["seconds_median"]
    assert table["against_best_crypten"] == pytest.approx(ratio)


def test_files_of_a_real_run(results: Path) -> None:
    page = (results / "results.md").read_text()
    assert "packet loss" in page
    assert "| crypten | log_reduction | 2 | 16 | 3 | 64 | 10 ms |" in page
    (png,) = (results / "plots").glob("*.png")
    assert png.name == "by-rtt-2-parties-16-rows-3-classes-100-mbit-s.png"
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in png.with_suffix(".svg").read_text()


@contextlib.contextmanager
def measuring(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A benchmark that would take long, once it measures, and its children."""
    options = [*SMALL, "--rtt=10", "--repeat=10000", f"--out={folder}"]
    process = subprocess.Popen(
        [*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "repeat 1 of" in line:
                break
        yield process, psutil.Process(process.pid).children()
    finally:
        process.kill()
        process.communicate()


def test_a_party_that_dies_ends_it_with_a_reason(tmp_path: Path) -> None:
    with measuring(tmp_path) as (process, children):
        assert len(children) == 4
        victim = next(c for c in children if any("party-1" in word for word in c.cmdline()))
        victim.kill()
        _, error = process.communicate(timeout=30)
        assert process.returncode == 1
        assert "party-1 ended with code -9" in error
        assert "Traceback" not in error
        assert not [child for child in children if child.is_running()]


def test_an_interrupt_ends_it_and_all_processes(tmp_path: Path) -> None:
    with measuring(tmp_path) as (process, children):
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "interrupted" in error
        assert "Traceback" not in error
        assert not [child for child in children if child.is_running()]


async def test_a_party_that_can_not_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committee = BenchCommittee(tmp_path, 2)
    monkeypatch.setattr(
        BenchCommittee,
        "_role",
        lambda self, command, name: [command, "--certs", str(tmp_path / "no")],
    )
    try:
        with pytest.raises(CommandError, match=r"ended with code 1: .*does not exist"):
            await committee._start()
    finally:
        committee._stop()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--parties", "1"], "--parties: each must be a whole number of at least 2 and at most 16"),
        (["--parties", "3,17"], "--parties: each must be"),
        (["--queries", "0"], "--queries: each must be"),
        (["--queries", "100001"], "--queries: each must be"),
        (["--classes", "1"], "--classes: each must be"),
        (["--classes", "1001"], "--classes: each must be"),
        (["--rtt=-1"], "--rtt: each must be a number of at least 0 and at most 2000, not -1"),
        (["--rate", "slow"], "--rate: each must be a number of at least 0, not 'slow'"),
        (["--repeat", "0"], "--repeat: must be a whole number of at least 1, not 0"),
        (["--bits", "2"], "--bits: must be a whole number"),
        (["--engine", "table,magic"], "'magic' is no engine; choose among table, pairwise"),
    ],
)
def test_bad_options_are_refused(options: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        load(BenchSettings, options)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("group", "did you mean groups?"),
        ("servce", "did you mean service?"),
        ("foo", "options begin with --"),
    ],
)
def test_a_wrong_subcommand_is_told_of_the_right_ones(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.command([word, "--quick"]) == 2
    out, error = capsys.readouterr()
    why = f"there is no subcommand {word!r}, only groups and service and load and crypten; {hint}"
    assert (out, error) == ("", f"mpc-vote bench: error: {why}\n")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--engine=table", "--repeat=1"], "mpc-vote bench: 1 case, 1 repeat after"),
        (["--engine=table,pairwise", "--repeat=2"], "mpc-vote bench: 2 cases, 2 repeats after"),
        (["groups"], "mpc-vote bench groups: 1 choice of the planner"),
        (["groups", "--queries=16,17"], "mpc-vote bench groups: 2 choices of the planner"),
    ],
)
def test_one_is_singular(
    options: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pretend(monkeypatch, PretendCommittee())
    small = ["--parties=2", "--queries=16", "--classes=3", "--rtt=0", f"--out={tmp_path}"]
    assert command.command([*options[:1], *small, *options[1:]]) == 0
    assert told in capsys.readouterr().out


def test_a_party_wants_a_driver() -> None:
    options = ["--certs=nowhere", "--listen=127.0.0.1:0", "--dealer=127.0.0.1:1"]
    done = subprocess.run(
        [sys.executable, "-m", "mpc_vote.cli", "bench-party", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "run mpc-vote bench" in done.stderr


# What is measured.


def test_lists_make_a_grid() -> None:
    settings = load(
        BenchSettings, ["--engine=table,pairwise", "--parties=2,3,2", "--rtt=0,10", "--rate=none,5"]
    )
    wanted = settings.cases()
    assert {case.condition for case in wanted} == {
        NetworkCondition(0, None),
        NetworkCondition(10, None),
        NetworkCondition(10, 5),
    }
    assert len(wanted) == len(set(wanted)) == 2 * 2 * 3
    assert {(case.queries, case.classes) for case in wanted} == {(500, 10)}
    assert {case.bits for case in wanted if case.crypten} == {64}


@pytest.mark.parametrize(("sigma", "bits"), [(100.0, cases.BITS), (25.0, 11)])
def test_the_ring_is_that_of_a_round_of_the_service(sigma: float, bits: int) -> None:
    message = planning.draft(
        ONE_HOT,
        round_id="r",
        queries=cases.QUERIES,
        query_dtype=common_pb2.DTYPE_FLOAT32,
        query_shape=[784],
        classes=cases.CLASSES,
        sigma=sigma,
        roster={f"agent-{number}": 0 for number in range(200)},
        quorum=160,
        collusion=0,
        parties=["party-0", "party-1", "party-2"],
        dealer="dealer",
        verified=True,
    )
    assert planning.complete(message, bytes(32), TABLE, 0.0).message.ring_bits == bits
    assert {case.bits for case in load(BenchSettings, ["--engine=table"]).cases()} == {cases.BITS}


def test_quick_is_small_and_without_a_shape_there_is_the_suite() -> None:
    quick, full = load(BenchSettings, ["--quick"]), load(BenchSettings, [])
    assert len(quick.cases()) == 2 * len(ENGINES.names())
    assert quick.repeats < full.repeats
    assert full.full and not load(BenchSettings, ["--classes=10"]).full
    suite = full.cases()
    assert len(suite) == len(set(suite))
    assert {case.rtt_ms for case in suite} == {0, 10, 20, 40, 80}
    assert {case.parties for case in suite} == {2, 3, 4, 5}
    assert {case.queries for case in suite} == {1, 100, 500, 2_000, 10_000}
    assert max(case.classes for case in suite) == 1_000
    assert max(case.queries for case in suite if case.crypten) == 2_000
    assert max(case.classes for case in suite if case.engine is PAIRWISE) == 20
    assert max(case.classes for case in suite if case.crypten) == 100


@pytest.mark.parametrize("engine", [TABLE, PAIRWISE])
def test_totals_have_ties_and_extremes_and_shares_sum_to_them(engine: EngineKind) -> None:
    bits = 25 if engine is TABLE else 64
    job = ArgmaxJob(
        session="s",
        parties=("a", "b", "c"),
        engine=engine,
        bits=bits,
        groups=(),
        rows=40,
        classes=4,
        seed="x",
        repeat=1,
    )
    totals = job.totals()
    largest = job.make_engine().largest_total(4)
    assert totals.shape == (40, 4)
    assert (totals.max(), totals.min()) == (largest, -largest)
    assert sum(np.ptp(row) == 0 for row in totals) >= 10
    summed: ring.Words = np.add.reduce([job.share(rank) for rank in range(3)])
    np.testing.assert_array_equal(ring.signed(summed, bits), totals.reshape(-1))
    again = job.model_copy(update={"repeat": 2})
    assert (again.totals() != totals).any()
    assert job.winners().tolist() == [row.index(max(row)) for row in totals.tolist()]


@pytest.mark.parametrize("classes", [2, 3, 10, 100, 1_000])
def test_alternative_groupings_leave_one_winner(classes: int) -> None:
    found = groups.alternatives(classes)
    assert len(found) == len(set(found)) >= 1
    assert (() in found) == (classes <= 256)
    for sizes in found:
        TableArgmax(25, sizes).levels(classes)


# Statistics, on made-up numbers.


class PretendCommittee:
    """Answers at once; its labels are right unless it is told to get a row wrong."""

    def __init__(self, wrong_row: int | None = None, preprocessing: int = 1) -> None:
        self.wrong_row = wrong_row
        self.preprocessing = preprocessing
        self.order: list[tuple[BenchCase, int]] = []

    def connect(self, condition: NetworkCondition) -> None:
        pass

    async def round_trip(self, condition: NetworkCondition, parties: int) -> float:
        return condition.rtt_ms / 1000 + 0.001

    async def preprocessing_bytes(self, case: BenchCase) -> int:
        return self.preprocessing

    async def run(self, case: BenchCase, repeat: int) -> CommitteeRun:
        self.order.append((case, repeat))
        job = job_of(case, repeat)
        labels = job.winners().astype(np.uint64)
        if self.wrong_row is not None and repeat == 1:
            labels[self.wrong_row] ^= np.uint64(1)
        fast = 1 if case.crypten else 10
        code = job.make_engine().label_code(case.classes)
        if case.two_rounds:
            labels = (np.arange(case.classes) != labels[:, None]).reshape(-1).astype(np.uint64)
        nothing = np.zeros_like(labels)
        packed = [code.pack(share) for share in (labels, *[nothing] * (case.parties - 1))]
        outcomes = [
            outcome(seconds=(10 + repeat) / fast, label_shares=PartyMeasurement.encode(share))
            for share in packed
        ]
        return CommitteeRun(job, 0.001 * (case.rtt_ms + repeat), outcomes)


def job_of(case: BenchCase, repeat: int) -> ArgmaxJob:
    return ArgmaxJob(
        session="s",
        parties=tuple(f"party-{rank}" for rank in range(case.parties)),
        engine=case.engine,
        bits=case.bits,
        groups=case.groups or (),
        two_rounds=case.two_rounds,
        rows=case.queries,
        classes=case.classes,
        seed="x",
        repeat=repeat,
    )


def outcome(**changes: object) -> PartyMeasurement:
    figures = {
        "seconds": 1.0,
        "cpu_seconds": 0.5,
        "rounds": 3,
        "bytes_sent": 3_200,
        "frame_bytes_sent": 3_300,
        "dealer_bytes": 1_000,
        "peak_memory_bytes": 10**8,
        "label_shares": "",
    }
    return PartyMeasurement.model_validate({**figures, **changes})


def row(**changes: Any) -> BenchRow:
    runs = [CommitteeRun(job_of(CASE, 1), 0.041, [outcome()] * 3)]
    return replace(measure.summarise(CaseRuns(CASE, runs)), **changes)


def test_a_repeat_takes_as_long_as_its_slowest_party() -> None:
    runs = [
        CommitteeRun(
            job_of(CASE, repeat),
            0.040 + trip,
            [
                outcome(seconds=slow - 0.5, cpu_seconds=0.1),
                outcome(seconds=slow, cpu_seconds=cpu, dealer_bytes=9_000),
                outcome(seconds=0.1, cpu_seconds=0.2),
            ],
        )
        for repeat, (slow, cpu, trip) in enumerate([(3, 0.9, 0.003), (1, 0.3, 0.001), (2, 0.4, 0)])
    ]
    figures = measure.summarise(CaseRuns(CASE, runs))
    assert (figures.seconds_median, figures.seconds_min) == (2, 1)
    assert figures.seconds_quartiles == (1.5, 2.5)
    assert figures.cpu_seconds_per_party == 0.4
    assert figures.dealer_bytes == 11_000
    assert figures.rtt_measured_ms == pytest.approx(41)
    assert figures.online_bytes_per_row_and_peer == 3_200 / 16 / 2
    assert (figures.engine, figures.method, figures.repeats) == ("table", "all pairs", 3)
    assert figures.correct


def test_quartiles_of_few() -> None:
    assert measure.quartiles([5.0]) == (5.0, 5.0)
    assert measure.quartiles([1.0, 2.0]) == (1.25, 1.75)
    assert measure.quartiles([4.0, 1.0, 3.0, 2.0, 5.0]) == (2.0, 4.0)


def test_rows_are_compared_with_the_best_stock_of_their_shape() -> None:
    compared = measure.against_best_crypten(
        [
            row(seconds_median=0.5),
            row(engine="crypten", method="pairwise", seconds_median=4.0),
            row(engine="crypten", method="log_reduction", seconds_median=2.0),
            row(parties=4),
        ]
    )
    assert [one.against_best_crypten for one in compared] == [4.0, 0.5, 1.0, None]


async def test_cases_take_turns_and_the_first_turn_does_not_count() -> None:
    committee = PretendCommittee()
    wanted = cases.grid([TABLE, PAIRWISE], [3], [16], [5], [NetworkCondition(0, None)], 25)
    found = await measure.measure(cast(Any, committee), wanted, 2, lambda step: None)
    assert [repeat for _, repeat in committee.order] == [0, 0, 1, 1, 2, 2]
    for turn in range(3):
        engines = {case.engine for case, _ in committee.order[2 * turn : 2 * turn + 2]}
        assert engines == {case.engine for case in wanted}
    table, crypten = found.rows
    assert (table.repeats, table.seconds_median, table.method) == (2, 1.15, "all pairs")
    assert table.against_best_crypten == pytest.approx(10)
    assert crypten.correct and not found.mistakes and not found.notes


async def test_what_does_not_fit_in_memory_is_left_out_and_said() -> None:
    committee = PretendCommittee(preprocessing=1 << 60)
    found = await measure.measure(cast(Any, committee), [CASE], 1, lambda step: None)
    assert not found.rows and not committee.order
    assert "3 parties, 16 x 5, rtt 40 ms" in found.notes[0]


def test_a_wrong_label_is_written_told_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, PretendCommittee(wrong_row=5))
    code = command.command([*SMALL, "--rtt=40", "--repeat=2", f"--out={tmp_path}"])
    assert code == 1
    error = capsys.readouterr().err
    assert "1 of 16 labels are wrong in repeat 1; the first is row 5" in error
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [one["correct"] for one in rows] == [False, False]
    assert "WRONG" in (tmp_path / "results.md").read_text()


def test_without_matplotlib_there_is_all_but_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, PretendCommittee())
    monkeypatch.setattr(plots, "available", lambda: False)
    assert command.command([*SMALL, "--rtt=0,40", "--repeat=1", f"--out={tmp_path}"]) == 0
    assert "matplotlib is not installed" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json", "results.md"]


def test_the_planner_is_compared_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, PretendCommittee())
    options = ["groups", "--queries=16", "--classes=10,30", "--rtt=40", "--repeat=1"]
    assert command.command([*options, f"--out={tmp_path}"]) == 0
    figures = json.loads((tmp_path / "groups.json").read_text())
    assert [one["classes"] for one in figures["choices"]] == [10, 30]
    assert all(one["ratio"] == 1 for one in figures["choices"])
    assert len(figures["rows"]) > 10
    assert "ratio" in capsys.readouterr().out


@pytest.mark.parametrize("kind", [[*SMALL], ["groups", "--queries=16", "--classes=10"]])
def test_figures_go_to_standard_output_if_asked_for_and_nothing_else(
    kind: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pretend(monkeypatch, PretendCommittee())
    options = [*kind, "--rtt=40", "--repeat=1", f"--out={tmp_path}", "--json=-"]
    assert command.command(options) == 0
    written = next(tmp_path.glob("*.json")).read_text()
    assert json.loads(capsys.readouterr().out) == json.loads(written)


def pretend(monkeypatch: pytest.MonkeyPatch, committee: PretendCommittee) -> None:
    @contextlib.asynccontextmanager
    async def running(parties: int) -> AsyncIterator[PretendCommittee]:
        yield committee

    monkeypatch.setattr(BenchCommittee, "running", running)


def test_a_choice_costs_its_ratio_to_the_best() -> None:
    rows = [row(seconds_median=3.0), row(method="5x1", seconds_median=2.0)]
    choice = groups.GroupingChoice(rows[0], rows)
    assert choice.ratio == 1.5
    summary = choice.summary()
    assert (summary["pick"], summary["best"], summary["ratio"]) == ("all pairs", "5x1", 1.5)


def test_hopeless_groupings_are_not_measured() -> None:
    pick = replace(CASE, queries=1_000, classes=100, groups=(5, 20))
    assert groups.hopeless(replace(pick, groups=()), pick)
    assert not groups.hopeless(replace(pick, groups=(10, 10)), pick)
    # With few rows all at once is quick, however many comparisons it takes for one.
    few = replace(pick, queries=10)
    assert not groups.hopeless(replace(few, groups=()), few)


def test_markdown_shows_conditions_figures_and_notes() -> None:
    rows = [
        row(seconds_median=0.0456, against_best_crypten=12.34),
        row(rtt_ms=0.0, rate_mbit=None, correct=False),
    ]
    page = report.markdown(report.document(rows, ["this and that"], "mpc-vote bench"), rows)
    assert "## Network: rtt 40 ms at 100 Mbit/s" in page
    assert "## Network: loopback" in page
    assert "| 40 ms | 41.0 ms | 3 | 45.6 ms (1 s; 1 s to 1 s) | 12.3 x | 3.2 kB | 100 B |" in page
    assert "- this and that" in page
    assert page.count("WRONG") == 1
    heading, _, *lines = [line for line in page.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {heading.count("|")}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00123, "1.23 ms"), (0.9, "900 ms"), (0.9999, "1 s"), (1.5, "1.5 s"), (1234.5, "1,234 s")],
)
def test_durations(value: float, text: str) -> None:
    assert report.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(75.6, "75.6 B"), (999.6, "1 kB"), (43_824_000, "43.8 MB"), (25.3e9, "25.3 GB")],
)
def test_sizes(value: float, text: str) -> None:
    assert report.size(value) == text


def test_plots_of_every_dimension(tmp_path: Path) -> None:
    crypten = {"engine": "crypten", "method": "pairwise"}
    values_of: dict[str, list[float]] = {
        "parties": [2, 3],
        "queries": [100, 500],
        "classes": [10, 100],
        "rtt_ms": [10.0],
    }
    rows = [
        row(**{**engine, key: value})
        for engine in ({}, crypten)
        for key, values in values_of.items()
        for value in values
    ] + [row(rtt_ms=0.0, rate_mbit=None, rtt_measured_ms=0.5)]
    names = {path.name for path in plots.draw(rows, tmp_path) if path.suffix == ".png"}
    assert names == {
        "by-rtt-3-parties-16-rows-5-classes-100-mbit-s.png",
        "by-queries-3-parties-5-classes-rtt-40-ms-100-mbit-s.png",
        "by-classes-3-parties-16-rows-rtt-40-ms-100-mbit-s.png",
        "by-parties-16-rows-5-classes-rtt-40-ms-100-mbit-s.png",
    }
    assert {path.name for path in tmp_path.glob("*.png")} == names


def test_progress_in_a_terminal() -> None:
    text = StringIO()
    out = Console(file=text, force_terminal=True, width=120)
    with command._progress(out, 1, 1) as tell:
        tell(measure.MeasurementStep(CASE, 0))
        tell(measure.MeasurementStep(CASE, 1))
    assert "measured" in text.getvalue()
