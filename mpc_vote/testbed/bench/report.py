"""The figures for people and for programs: JSON, Markdown, and a table for the terminal."""

from __future__ import annotations

import dataclasses
import datetime as dt
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from mpc_vote.app.provenance import machine, versions
from mpc_vote.testbed.bench.cases import NetworkCondition
from mpc_vote.testbed.bench.measure import BenchRow

_PACKAGES = ("mpc-vote", "numpy", "torch", "crypten", "grpcio")

READING = """\
Every party is a process of its own, and so is the dealer; all share the cores of
this one machine. Time is from the common start to the last party's last label share, the median of
the repeats after one that warms up and is not counted; in brackets the minimum and the quartiles.
All preprocessing was dealt and expanded before the start: what the dealer sent then, to all parties
together, has a column of its own. Sent is the payload that one party sends to all of its peers
together while the clock runs, and the same for each row and peer; framed adds the headers of
frames, but not TLS. CPU is that of the busiest party, memory the most that a party's process
held, torch and waiting preprocessing included. Against crypten is how many times as quick it is as
the best of CrypTen's methods that was measured on the same shape and network. Bits is the ring of
the totals. Labels says whether all labels of all repeats were right.

Distance is made by relays of byte streams: they delay and pace every byte that passes, in each
direction, but know neither packet loss nor TCP's congestion control over the distance, which a real
far network adds. Round trips are given as asked and as measured by pings between the parties.
Without delay the parties talk over loopback directly, and no rate applies."""

_HEADINGS = (
    "engine",
    "method",
    "parties",
    "queries",
    "classes",
    "bits",
    "RTT asked",
    "RTT measured",
    "rounds",
    "time (min; quartiles)",
    "against crypten",
    "sent per party",
    "per row and peer",
    "framed",
    "dealt",
    "CPU",
    "memory",
    "repeats",
    "labels",
)


def document(rows: Sequence[BenchRow], notes: Sequence[str], command: str) -> dict[str, Any]:
    """All there is to say of a measurement."""
    return {
        "machine": machine(),
        "versions": versions(_PACKAGES),
        "command": command,
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "notes": list(notes),
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def markdown(figures: Mapping[str, Any], rows: Sequence[BenchRow]) -> str:
    """The figures as a page."""
    host, packages = figures["machine"], figures["versions"]
    lines = [
        "# The secure argmax, measured",
        "",
        f"`{figures['command']}`, {figures['date']}",
        "",
        f"{host['cpu']}, {host['cores']} cores, {size(host['memory_bytes'])} of memory, "
        f"{host['kernel']}, Python {host['python']}; "
        + ", ".join(f"{name} {version}" for name, version in packages.items())
        + ".",
    ]
    for condition, part in _by_condition(rows):
        lines += ["", f"## Network: {condition}", ""]
        lines += [_line(_HEADINGS), _line("---" for _ in _HEADINGS)]
        lines += [_line(_cells(row)) for row in part]
    if figures["notes"]:
        lines += ["", "## Left out", ""]
        lines += [f"- {note}" for note in figures["notes"]]
    return "\n".join([*lines, "", "## Reading help", "", READING, ""])


def tables(rows: Sequence[BenchRow]) -> list[Table]:
    """What matters most, for the terminal; the spread is half of that between the quartiles."""
    shown = []
    for condition, part in _by_condition(rows):
        measured = statistics.median(row.rtt_measured_ms for row in part)
        title = f"{condition}; round trip as measured {measured:.1f} ms"
        table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=0)
        table.add_column("engine", no_wrap=True)
        for heading in ("P", "rows", "classes", "rounds", "sent", "time", "+-", "vs crypten"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in part:
            low, high = row.seconds_quartiles
            table.add_row(
                row.method if row.crypten else f"{row.engine} {row.method}",
                str(row.parties),
                str(row.queries),
                str(row.classes),
                str(row.rounds),
                size(row.online_bytes_per_party),
                seconds(row.seconds_median),
                f"{(high - low) / 2 / row.seconds_median:.0%}",
                _ratio(row),
            )
        shown.append(table)
    return shown


def seconds(value: float) -> str:
    """A duration with three digits."""
    return f"{_digits(1000 * value)} ms" if value < 0.9995 else f"{_digits(value)} s"


def size(count: float) -> str:
    """An amount of bytes with three digits."""
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{_digits(count)} {unit}"
        count /= 1000
    return f"{_digits(count)} GB"


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def _by_condition(rows: Iterable[BenchRow]) -> list[tuple[NetworkCondition, list[BenchRow]]]:
    parts: dict[NetworkCondition, list[BenchRow]] = {}
    for row in rows:
        parts.setdefault(NetworkCondition(row.rtt_ms, row.rate_mbit), []).append(row)
    return list(parts.items())


def _cells(row: BenchRow) -> list[str]:
    low, high = map(seconds, row.seconds_quartiles)
    return [
        row.engine,
        row.method,
        str(row.parties),
        str(row.queries),
        str(row.classes),
        str(row.bits),
        f"{row.rtt_ms:g} ms",
        f"{row.rtt_measured_ms:.1f} ms",
        str(row.rounds),
        f"{seconds(row.seconds_median)} ({seconds(row.seconds_min)}; {low} to {high})",
        _ratio(row),
        size(row.online_bytes_per_party),
        size(row.online_bytes_per_row_and_peer),
        size(row.frame_bytes_per_party),
        size(row.dealer_bytes),
        seconds(row.cpu_seconds_per_party),
        size(row.peak_memory_bytes),
        str(row.repeats),
        _labels(row),
    ]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _ratio(row: BenchRow) -> str:
    return "" if row.against_best_crypten is None else f"{_digits(row.against_best_crypten)} x"


def _labels(row: BenchRow) -> str:
    return "right" if row.correct else "WRONG"
