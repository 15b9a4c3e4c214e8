"""`mpc-vote bench crypten`: the same CrypTen programs with each `max_method`, `table` among them.

Everything is CrypTen's: its processes, its communicator over loopback, its provider; only what
finds the maximum differs. Preprocessing is made while the clock runs, as CrypTen makes it, and
every result of every repeat is compared with plain torch's. Rounds and bytes are what CrypTen
counts, sent and received by rank 0. (`mpc-vote bench` measures the engines as the service runs
them, on its own transport, with preprocessing dealt beforehand.)
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field
from rich import box
from rich.table import Table

from mpc_vote.app import process
from mpc_vote.app.config import LogLevel, Settings
from mpc_vote.app.process import PARENT_VARIABLE, CommandError
from mpc_vote.app.provenance import machine, versions
from mpc_vote.argmax.registry import ENGINES
from mpc_vote.cli.common import check_writable, console, counted, write_json
from mpc_vote.testbed.bench.crypten_party import CryptenJob, command_line
from mpc_vote.testbed.bench.report import seconds, size
from mpc_vote.voting.limits import MAX_CLASSES

_PACKAGES = ("mpc-vote", "numpy", "torch", "crypten")


def _method(value: str) -> str:
    # CrypTen's methods and ours have the engines' names.
    if value not in ENGINES.names():
        raise ValueError(f"{value!r} is no max_method; choose among {', '.join(ENGINES.names())}")
    return value


class CryptenBenchSettings(Settings):
    """Runs the same CrypTen programs with each max_method, on CrypTen's own transport."""

    command: ClassVar[str] = "bench crypten"

    method: list[Annotated[str, AfterValidator(_method)]] = Field(
        ENGINES.names(), min_length=1, description="table, and CrypTen's own"
    )
    provider: Literal["TFP", "TTP"] = Field(
        "TFP", description="who deals, as CrypTen calls it: rank 0 (TFP), or a third party (TTP)"
    )
    parties: int = Field(3, ge=2, le=8, description="processes")
    rows: int = Field(500, ge=1, le=100_000, description="rows, or pictures")
    classes: int = Field(10, ge=2, le=MAX_CLASSES, description="elements of a row")
    repeat: int = Field(5, ge=1, le=1_000, description="repeats that count, after a first turn")
    seconds: float = Field(900.0, gt=0, description="time for everything, or it is given up")
    json_path: str | None = Field(
        None, alias="json", description="also write the figures as JSON to this file, - for stdout"
    )
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote bench crypten`."""
    return process.run(CryptenBenchSettings, arguments, run_bench)


async def run_bench(settings: CryptenBenchSettings) -> None:
    """Measures, shows, writes."""
    check_writable(settings.json_path)
    out = console(settings.json_path)
    out.print(
        f"[bold]mpc-vote bench crypten[/bold]: {settings.parties} parties, {settings.rows} x "
        f"{settings.classes}, {counted(settings.repeat, 'repeat')} after a first turn"
    )
    methods = list(dict.fromkeys(settings.method))
    job = CryptenJob(methods, settings.provider, settings.rows, settings.classes, settings.repeat)
    rows = await asyncio.to_thread(_run, job, settings.parties, settings.seconds)
    for row in rows:
        row["seconds_median"] = statistics.median(row["seconds"])
        row["seconds_min"] = min(row.pop("seconds"))
    out.print(_table(rows))
    asked = settings.model_dump(mode="json", exclude={"config", "log_level", "json_path"})
    write_json(
        settings.json_path,
        {"settings": asked, "machine": machine(), "versions": versions(_PACKAGES), "rows": rows},
    )
    wrong = [f"{row['program']} with {row['method']} is wrong" for row in rows if not row["right"]]
    if wrong:
        raise CommandError("; ".join(wrong))
    out.print("every result of every repeat is right")


def _run(job: CryptenJob, parties: int, limit: float) -> list[dict[str, Any]]:
    """The figures of rank 0."""
    with tempfile.TemporaryDirectory(prefix="mpc-vote-bench-") as folder:
        children = [
            _start(job, rank, parties, Path(folder))
            for rank in range(parties + (job.provider == "TTP"))
        ]
        try:
            output, _ = children[0].communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            raise CommandError(
                f"not done after {limit:g} s: ask for less, or for more time (--seconds)"
            ) from None
        finally:
            for child in children:
                child.kill()
                child.wait()
        if children[0].returncode:
            said = (Path(folder) / "rank-0.log").read_text().strip().splitlines()
            raise CommandError(f"rank 0 failed: {(said or ['it said nothing'])[-1]}")
    rows: list[dict[str, Any]] = json.loads(output.splitlines()[-1])
    return rows


def _start(job: CryptenJob, rank: int, parties: int, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / f"rank-{rank}.log").open("wb") as log:
        return subprocess.Popen(
            command_line(job),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if rank == 0 else log,
            stderr=log,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(parties),
                "RENDEZVOUS": f"file://{folder}/rendezvous",
                "DISTRIBUTED_BACKEND": "gloo",
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                PARENT_VARIABLE: str(os.getpid()),
            },
        )


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = Table(box=box.SIMPLE, padding=0)
    shown.add_column("program", no_wrap=True)
    shown.add_column("max_method", no_wrap=True)
    for heading in ("rounds", "bytes", "time", "least", "result"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(
            row["program"],
            row["method"],
            str(row["rounds"]),
            size(row["bytes"]),
            seconds(row["seconds_median"]),
            seconds(row["seconds_min"]),
            "right" if row["right"] else "WRONG",
        )
    return shown
