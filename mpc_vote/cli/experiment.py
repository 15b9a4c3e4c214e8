"""`mpc-vote experiment NAME`: runs a table of the paper, and writes the result."""

from __future__ import annotations

import math
import os
import re
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field
from rich.console import Console

from mpc_vote.app import process
from mpc_vote.app.config import ConfigError, LogLevel, Settings
from mpc_vote.app.process import CommandError
from mpc_vote.cli.common import check_writable, console, progress, write_json
from mpc_vote.simulation import experiment as experiments
from mpc_vote.simulation import plots, report
from mpc_vote.simulation.experiment import (
    DATA_VARIABLE,
    Arm,
    ArmContext,
    Experiment,
    SeedResult,
    Tell,
)
from mpc_vote.simulation.experiments import EXPERIMENTS, find
from mpc_vote.simulation.store import ResultStore

_PAGE_WIDTH = 140
_MAX_SEEDS = 1000


def _seeds(value: str) -> list[int]:
    """From a number of seeds, or from a list of them; one alone is written `7,`."""
    if "," not in value:
        return list(range(int(value)))
    return [int(seed) for seed in value.split(",") if seed.strip()]


def _checked_seeds(value: str) -> str:
    try:
        seeds = _seeds(value)
    except ValueError:
        seeds = []
    if not 0 < len(set(seeds)) == len(seeds) <= _MAX_SEEDS or min(seeds) < 0:
        raise ValueError(
            f"write a number from 1 to {_MAX_SEEDS}, or different seeds such as 7,11 (not {value})"
        )
    return value


def _checked_pattern(value: str | None) -> str | None:
    try:
        re.compile(value or "")
    except re.error as error:
        raise ValueError(f"{value!r} is no regular expression: {error}") from error
    return value


class ExperimentSettings(Settings):
    """Runs an experiment with several seeds and writes a table, a page, JSON and a plot.

    Finished parts are kept in the cache: after an interruption, start the same command again.
    """

    command: ClassVar[str] = "experiment"

    seeds: Annotated[str, AfterValidator(_checked_seeds)] = Field(
        "5", description="how often to repeat it, with seeds from 0 on; or a list of seeds: 7,11"
    )
    arms: Annotated[str | None, AfterValidator(_checked_pattern)] = Field(
        None, description="run only rows whose name matches this regular expression"
    )
    data: Path | None = Field(
        None, description=f"folder with the data sets; {DATA_VARIABLE} if left out"
    )
    out: Path = Field(Path("experiment-results"), description="folder for page, JSON and plot")
    cache: Path | None = Field(
        None, description="folder for finished parts; `cache` in the folder of the results"
    )
    workers: int = Field(os.cpu_count() or 1, ge=1, description="threads that train")
    json_path: str | None = Field(
        None, alias="json", description="also write the figures as JSON to this file, - for stdout"
    )
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote experiment`."""
    given = "mpc-vote experiment " + shlex.join(arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    name, *options = arguments

    async def main(settings: ExperimentSettings) -> None:
        _run(settings, name, given)

    return process.run(ExperimentSettings, options, main)


def _usage() -> str:
    lines = "\n".join(f"  {name:<16} {make.__doc__}" for name, make in EXPERIMENTS.items())
    return (
        "usage: mpc-vote experiment NAME [--help] [options]\n\n"
        "Repeats the paper's experiments with the real vote, without its network.\n\n"
        f"experiments:\n{lines}"
    )


def _run(settings: ExperimentSettings, name: str, given: str) -> None:
    # Training does not come back to the event loop: an interrupt must not wait for it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    experiment = find(name)
    if experiment is None:
        raise ConfigError(
            f"there is no experiment {name!r}; choose one of: {', '.join(EXPERIMENTS)}"
        )
    experiment, seeds = _chosen(experiment, settings.arms), _seeds(settings.seeds)
    out = console(settings.json_path)
    settings.out.mkdir(parents=True, exist_ok=True)
    page = settings.out / f"{name}.md"
    for path in (page, settings.json_path):
        check_writable(path)
    out.print(f"[bold]mpc-vote experiment {name}[/bold]: {experiment.title}")
    try:
        data = experiment.load(_data(settings))
    except (ValueError, FileNotFoundError) as error:
        raise CommandError(str(error)) from error
    store = ResultStore(settings.cache or settings.out / "cache")
    with _progress(out) as (tell, done):
        if experiment.prepare is not None:
            data = experiment.prepare(data, store, tell)
        context = ArmContext(data, store, settings.workers, tell)
        results = experiments.run(experiment, seeds, context, done)
    page_width = None if out.is_terminal else _PAGE_WIDTH
    Console(file=out.file, width=page_width).print(report.table(experiment, results))
    for note in experiment.notes:
        out.print(f"- {note}", soft_wrap=True)
    figures = report.document(experiment, results, seeds, given)
    page.write_text(report.markdown(experiment, results, figures))
    write_json(str(settings.out / f"{name}.json"), figures)
    write_json(settings.json_path, figures)
    written = [f"{name}.md", f"{name}.json"]
    if plots.can_draw():
        plots.draw(experiment, figures, settings.out / f"{name}.svg")
        written.append(f"{name}.svg")
    else:
        out.print(plots.MISSING)
    out.print(f"written to {settings.out}: {', '.join(written)}", soft_wrap=True)


def _chosen(experiment: Experiment, pattern: str | None) -> Experiment:
    """The experiment with the rows that are asked for."""
    arms = tuple(arm for arm in experiment.arms if re.search(pattern or "", arm.name))
    if not arms:
        names = "; ".join(arm.name for arm in experiment.arms)
        raise ConfigError(f"--arms: no row of {experiment.name} matches {pattern!r}; rows: {names}")
    return replace(experiment, arms=arms)


def _data(settings: ExperimentSettings) -> Path | None:
    if settings.data is not None:
        return settings.data
    given = os.environ.get(DATA_VARIABLE)
    return Path(given) if given else None


@contextmanager
def _progress(out: Console) -> Iterator[tuple[Tell, experiments.Done]]:
    """Shows what is done now: a live bar in a terminal, else a line now and then."""
    started = time.monotonic()

    def done(arm: Arm, seed: int, outcome: SeedResult) -> None:
        out.print(f"{arm.name}, seed {seed}: {100 * outcome.accuracy:.1f} %", soft_wrap=True)

    if not out.is_terminal:
        last = -math.inf

        def line(what: str, parts: int, total: int) -> None:
            nonlocal last
            now = time.monotonic() - started
            if now - last >= 10:
                last = now
                out.print(f"{now:5.0f} s  {what}: {parts} of {total}", soft_wrap=True)

        yield line, done
        return
    with progress(out) as bars:
        task = bars.add_task("", total=1, detail="")

        def bar(what: str, parts: int, total: int) -> None:
            bars.update(task, description=what, completed=parts, total=total, detail="")

        yield bar, done
        bars.update(task, description="done", completed=1, total=1)
