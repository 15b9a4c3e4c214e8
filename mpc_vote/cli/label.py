"""`mpc-vote label`: labels for a batch of queries, from the shell."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpc_vote.app import process
from mpc_vote.app.config import Ballot, ConfigError, Engine
from mpc_vote.app.process import CommandError, Interrupted
from mpc_vote.argmax.registry import ENGINES
from mpc_vote.cli import dry_run, earlier
from mpc_vote.cli.against import EXPLAINED, by_labels
from mpc_vote.cli.common import (
    ClientSettings,
    check_labels_file,
    check_writable,
    connect,
    console,
    counted,
    load_task,
    progress,
    read_rows,
    write_json,
    write_labels,
)
from mpc_vote.cli.plan.words import told_noise
from mpc_vote.cli.selection import select
from mpc_vote.client import AsyncLabelClient, LabelResult, Plan, Progress
from mpc_vote.data.readers import BadRows
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy.rounding import round_up
from mpc_vote.tasks import Task


class LabelSettings(ClientSettings):
    """Asks the service for labels of the rows of a file."""

    command: ClassVar[str] = "label"

    task: Path | None = Field(
        None,
        description="the task's file: classes, ballot and tau follow from it; labels have names",
    )
    queries: Path = Field(
        description="public queries, one per row: what the task's readers read; without a task an "
        ".npy file"
    )
    bad_rows: BadRows = Field(
        "refuse", description="rows that are no inputs of the task: refuse or skip"
    )
    out: Path | None = Field(
        None,
        description="file to write the labels to: numbers to .npy; with a task also .csv, .tsv or "
        ".parquet, by name, beside the queries",
    )
    classes: int | None = Field(
        None, description="number of classes (multi_label: of attributes), without a task"
    )
    ballot: Ballot | None = Field(None, description="kind of ballots")
    sigma: float | None = Field(
        None, description="noise in votes; as the coordinator is set (25 by default) if left out"
    )
    quorum: int | None = Field(None, ge=1, description="least number of agents")
    collusion: int | None = Field(
        None, ge=0, description="agents assumed to pool their noise, if unverified"
    )
    tau: int | None = Field(None, ge=1, description="most attributes an agent says yes to")
    delta: float | None = Field(None, description="delta of the reported epsilon")
    answer_seconds: int | None = Field(None, ge=1, description="time that agents have to answer")
    verified: bool | None = Field(
        None,
        description="whether ballots are shared so that none can hold more votes than allowed; by "
        "default they are, where the kind of ballot can be verified",
    )
    engine: Engine | None = Field(
        None,
        description="how the winner is found: table, or one of CrypTen's own methods; by default "
        "as the coordinator is set",
    )
    agreement: float | None = Field(
        None,
        ge=0,
        le=1,
        description="expected part of the votes for the right class: where noise would drown even "
        "their lead nobody is asked (all of them if left out)",
    )
    yes: bool = Field(
        False,
        description="ask even if noise drowns the lead, or a round over the same queries exists",
    )
    overwrite: bool = Field(False, description="replace a file that is there by a new round's")
    dry_run: bool = Field(False, description="show who would be asked and at what cost; ask nobody")
    select: int | None = Field(
        None, ge=1, description="ask about so many representatives of the rows, in task features"
    )
    weights: Path | None = Field(
        None, description="with --select: weights of the task's feature map, if it has some"
    )
    request_id: str | None = Field(
        None, description="id of this request: asking again with the same id is never charged twice"
    )
    round: str | None = Field(
        None,
        description="id of a round of yours over these queries: its labels are written beside them "
        "again, and nobody is asked",
    )
    patience: float = Field(
        60.0, ge=0, description="seconds for which a busy service is asked again, when it says so"
    )


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote label`."""

    async def main(settings: LabelSettings) -> None:
        await _main(settings, arguments)

    return process.run(LabelSettings, arguments, main)


async def _main(settings: LabelSettings, arguments: Sequence[str]) -> None:
    task = load_task(settings.task)
    if task is None and settings.classes is None:
        raise ConfigError("--task: is missing: pass the task's file, or --classes without a task")
    if settings.out is None and not (settings.dry_run and settings.round is None):
        raise ConfigError("--out: is missing: pass --out, or --dry-run to ask nobody")
    if settings.weights is not None and settings.select is None:
        raise ConfigError("--weights: is for --select alone: agents have weights of their own")
    plan = _plan(settings, task)
    plan.message()  # refuses values out of range
    inputs = read_rows(settings.queries, task, settings.bad_rows)
    read = (settings.queries, settings.task, settings.weights)
    check_labels_file(settings.out, task, *read)
    check_writable(settings.json_path, settings.out, *read)
    rows, asked = inputs.rows, None
    if settings.select is not None:
        asked = select(rows, settings.select, task, settings.weights)
        rows = rows[asked]
    out = console(settings.json_path, markup=False)
    async with connect(settings) as client:
        if settings.out is not None and settings.round is not None:
            _, labels = await earlier.labels_of(client, settings.round, rows, task)
            write_labels(settings.out, labels, task, inputs, asked)
            told = f"{counted(len(labels), 'label')} of round {settings.round} in {settings.out}"
            out.print(f"{told}: nothing more was charged.", soft_wrap=True)
            kept = {"round_id": settings.round, "labels": len(labels)}
            write_json(settings.json_path, kept | _selected(asked))
            return
        if settings.out is None or settings.dry_run:
            planned = await client.plan(rows, plan)
            agreed = dry_run.AGREEMENTS if settings.agreement is None else (settings.agreement,)
            same = earlier.same_queries(await client.rounds(), rows, task, settings.classes)
            noted = [] if same is None else [earlier.told(same, arguments, settings.out)]
            dry_run.show(out, planned, agreed, noted)
            write_json(settings.json_path, dry_run.figures(planned, agreed) | _selected(asked))
            return
        before = await client.rounds()
        known = earlier.same_request(before, settings.request_id)
        same = earlier.same_queries(before, rows, task, settings.classes)
        if known is None and same is not None and not settings.yes:
            why = earlier.told(same, arguments, settings.out)
            raise CommandError(f"nothing was asked: {why}; or ask, and pay, again with --yes")
        if known is None and settings.out.exists() and not settings.overwrite:
            why = f"{settings.out} is there already: pass --overwrite to replace it"
            raise CommandError(f"nothing was asked: {why}")
        result = await _label(client, rows, plan, out, settings.patience, arguments)
    write_labels(settings.out, result.labels, task, inputs, asked)
    _show(out, result, settings.out)
    if known is not None:
        out.print("It was asked for before under this request id: nothing more was charged.")
    write_json(settings.json_path, figures(result) | _selected(asked))


def _selected(asked: npt.NDArray[np.int64] | None) -> dict[str, list[int]]:
    """Which rows of the file were chosen, if some were."""
    return {} if asked is None else {"selected": asked.tolist()}


def _plan(settings: LabelSettings, task: Task | None) -> Plan:
    agreement = 1.0 if settings.agreement is None else settings.agreement
    return Plan(
        classes=settings.classes,
        ballot=settings.ballot,
        sigma=settings.sigma,
        quorum=settings.quorum,
        collusion=settings.collusion,
        tau=settings.tau,
        delta=settings.delta,
        answer_seconds=settings.answer_seconds,
        request_id=settings.request_id or secrets.token_hex(16),
        verified=settings.verified,
        engine=settings.engine,
        task=task,
        agreement=None if settings.yes else agreement,
    )


async def _label(
    client: AsyncLabelClient,
    queries: Any,
    plan: Plan,
    out: Console,
    patience: float,
    arguments: Sequence[str],
) -> LabelResult:
    """The result; after an interrupt, the error says what becomes of the round."""
    rounds: list[str] = []
    again = shlex.join(["mpc-vote", "label", *_with_id(arguments, plan.request_id or "")])
    try:
        return await follow(client, queries, plan, out, patience, rounds.append)
    except asyncio.CancelledError:
        raise Interrupted(await _interrupted(client, rounds, again)) from None
    except VoteError as error:
        # Every other error says itself what was spent.
        if error.kind in (ErrorKind.COORDINATOR_UNREACHABLE, ErrorKind.ANSWER_LATE):
            error.add(f"What was spent is not known; ask again, and pay once: {again}")
        raise


def _with_id(arguments: Sequence[str], request_id: str) -> list[str]:
    """A command that asks for the same, and never for a second round of it."""
    given = any(argument.split("=")[0] == "--request-id" for argument in arguments)
    return [*arguments] if given else [*arguments, "--request-id", request_id]


async def _interrupted(client: AsyncLabelClient, rounds: Sequence[str], again: str) -> str:
    """Cancels the round if it costs nothing yet, and says what to do if it does: the same command
    puts its labels beside the right rows."""
    if not rounds:
        return "interrupted before a round was opened; `mpc-vote rounds` lists one if there is any"
    try:
        cancelled = await client.cancel(rounds[-1])
    except VoteError as error:
        state = f"is perhaps charged ({error.message})"
    else:
        if cancelled:
            return f"interrupted: round {rounds[-1]} was cancelled, and nothing was charged"
        state = "is charged and goes on"
    return f"interrupted: round {rounds[-1]} {state}; fetch its labels, at no further cost: {again}"


async def follow(
    client: AsyncLabelClient,
    queries: Any,
    plan: Plan,
    out: Console,
    patience: float = 0.0,
    on_round: Callable[[str], None] = lambda _: None,
) -> LabelResult:
    """Asks for labels and shows how far the round is; `on_round` takes its id."""
    names = {
        "waiting": "waiting for a place",
        "preparing": "agents prepare",
        "voting": "agents send shares",
        "counting": "committee counts",
    }
    with progress(out) as bars:
        tasks: dict[str, Any] = {}
        async for event in client.stream(queries, plan, patience):
            if isinstance(event, LabelResult):
                return event
            if event.stage == "opened":
                on_round(event.round_id)
                continue
            _advance(bars, tasks, names, event)
    raise AssertionError("the stream ended without a result or an error")


def _advance(bars: Any, tasks: dict[str, Any], names: dict[str, str], event: Progress) -> None:
    if event.stage not in tasks:
        name = names.get(event.stage, event.stage)
        tasks[event.stage] = bars.add_task(name, total=event.total, detail=event.detail)
    bars.update(tasks[event.stage], completed=event.done, total=event.total, detail=event.detail)


def engine_name(result: LabelResult) -> str | None:
    """The engine that the round was counted with; None where the answer, as one to a request that
    was asked before, does not say."""
    if result.spec is None:
        return None
    kind = ENGINES.by_code(result.spec.engine)
    return "an engine unknown here" if kind is None else kind.name


def figures(result: LabelResult) -> dict[str, Any]:
    """What a round cost, under stable keys."""
    cost = result.cost
    return {
        "round_id": result.round_id,
        "task": None if result.task is None else result.task.name,
        "labels": len(result.labels),
        "classes": _shares(result),
        "contributors": result.contributors,
        "absences": result.absences,
        "warnings": list(result.warnings),
        "epsilon_agent": cost.epsilon_agent,
        "epsilon_instance": cost.epsilon_instance,
        "delta": cost.delta,
        "total_epsilon_agent": cost.total_epsilon_agent,
        "total_epsilon_instance": cost.total_epsilon_instance,
        "sigma": None if result.spec is None else result.spec.sigma,
        "labels_epsilon_agent": cost.labels_epsilon_agent,
        "labels_epsilon_instance": cost.labels_epsilon_instance,
        "total_labels_epsilon_agent": cost.total_labels_epsilon_agent,
        "total_labels_epsilon_instance": cost.total_labels_epsilon_instance,
        "engine": engine_name(result),
        "mpc_rounds": cost.mpc_rounds,
        "mpc_bytes_per_party": cost.mpc_bytes_per_party,
        "mpc_seconds": cost.mpc_seconds,
        "mpc_preprocessing_seconds": cost.mpc_preprocessing_seconds,
        "mpc_sum_seconds": cost.mpc_sum_seconds,
        "mpc_round_trip_seconds": cost.mpc_round_trip_seconds,
        "dealer_bytes": cost.dealer_bytes,
        "upload_bytes_per_agent": cost.upload_bytes_per_agent,
        "seconds": cost.seconds,
    }


def _shares(result: LabelResult) -> dict[str, int] | None:
    """How many labels each class has, by name."""
    if result.task is None:
        return None
    classes = result.task.classes
    rows = result.labels.reshape(len(result.labels), -1)
    per_class = np.bincount(rows[:, 0], minlength=len(classes))
    counts = rows.sum(axis=0) if result.task.attributes else per_class
    return {name: int(count) for name, count in zip(classes, counts, strict=True)}


def _show(out: Console, result: LabelResult, path: Path) -> None:
    cost = result.cost
    table = Table(show_header=False, box=None, pad_edge=False)
    for warning in result.warnings:
        out.print(Text.assemble(("warning", "yellow"), f": {warning}"))
    table.add_row("round", result.round_id)
    table.add_row("labels", f"{len(result.labels)} in {path}")
    for name, count in (_shares(result) or {}).items():
        table.add_row("", Text(f"{count} {name}"))
    table.add_row("agents counted", str(result.contributors))
    if result.spec is not None:
        table.add_row("ballots", "verified" if result.spec.verified else "not verified")
        noise = (result.spec.verified, result.spec.sigma, result.spec.collusion)
        table.add_row("noise", told_noise(*noise))
    for agent, reason in result.absences.items():
        table.add_row("  absent", Text(f"{agent}: {reason}"))
    table.add_row(
        "epsilon of this round",
        f"{round_up(cost.epsilon_agent)} agent level, {round_up(cost.epsilon_instance)} instance "
        f"level (delta {cost.delta:g})",
    )
    table.add_row("  by labels", by_labels(cost))
    table.add_row(
        "epsilon of all rounds",
        f"{round_up(cost.total_epsilon_agent)} agent level, "
        f"{round_up(cost.total_epsilon_instance)} instance level",
    )
    table.add_row("  by labels", by_labels(cost, "total_"))
    engine = engine_name(result)
    table.add_row(
        "secure argmax",
        f"{'' if engine is None else f'{engine}, '}{cost.mpc_rounds} rounds, "
        f"{cost.mpc_bytes_per_party:,} bytes per party, "
        f"{cost.mpc_seconds:.2f} s, {1000 * cost.mpc_round_trip_seconds:.1f} ms between parties",
    )
    out.print(table)
    out.print(EXPLAINED)
