"""`mpc-vote rounds`: lists this client's rounds, and fetches the labels of one again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from rich.console import Console
from rich.padding import Padding

from mpc_vote.app import process
from mpc_vote.app.process import CommandError
from mpc_vote.cli import earlier
from mpc_vote.cli.against import EXPLAINED, by_labels
from mpc_vote.cli.common import (
    LABELS,
    ClientSettings,
    check_ending,
    check_labels_file,
    check_writable,
    connect,
    console,
    counted,
    kind_name,
    write_json,
    write_labels,
)
from mpc_vote.privacy.rounding import round_up
from mpc_vote.proto.mpcvote.v1 import label_pb2

_STATES = {
    number: name.removeprefix("ROUND_STATE_").lower()
    for name, number in label_pb2.RoundState.items()
}
# In place of what a service says and this version can't read.
_UNKNOWN = "?"


class RoundsSettings(ClientSettings):
    """Lists this client's rounds; with --round and --out writes the labels of one again."""

    command: ClassVar[str] = "rounds"

    round: str | None = Field(None, description="id of the round to fetch the labels of")
    out: Path | None = Field(
        None,
        description="file to write its labels to: numbers to .npy; of a task also to .csv, .tsv or "
        ".parquet, by name",
    )


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote rounds`."""
    return process.run(RoundsSettings, arguments, _main)


async def _main(settings: RoundsSettings) -> None:
    if (settings.round is None) != (settings.out is None):
        raise CommandError("labels need both --round and --out")
    check_ending(settings.out, LABELS)
    check_writable(settings.out)
    check_writable(settings.json_path, settings.out)
    out = console(settings.json_path, markup=False)
    async with connect(settings) as client:
        rounds = await client.rounds()
        if settings.round is not None and settings.out is not None:
            found, labels = await earlier.labels_of(client, settings.round)
            task = client.task_of(found)
            check_labels_file(settings.out, task)
            write_labels(settings.out, labels, task)
            out.print(
                f"labels written to {settings.out}, in the order in which queries were sent: which "
                "rows of a file they are of is not known here. `mpc-vote label` with the options "
                f"of that request and --round {settings.round} writes them beside their rows."
            )
    for one in rounds:
        show(out, one)
    if any(one.HasField("cost") for one in rounds):
        out.print(EXPLAINED)
    write_json(settings.json_path, {"rounds": [_row(one) for one in rounds]})


def show(out: Console, one: label_pb2.RoundSummary) -> None:
    """A round in a few lines: ids are copied, so they stand whole, and epsilon is never cut."""
    row = _row(one)
    task = f", task {row['task']}" if row["task"] else ""
    out.print(f"{row['round_id']}  {row['state']}, {_opened(one)}{task}", soft_wrap=True)
    asked = f"{counted(row['queries'], 'query', 'queries')}, sigma {row['sigma']:g}"
    out.print(Padding(f"{asked}: {_spent(one)}" if _spent(one) else asked, (0, 0, 0, 2)))
    if one.HasField("cost"):
        out.print(Padding(f"by labels {by_labels(one.cost)}", (0, 0, 0, 2)))
    if one.reason:
        out.print(Padding(one.reason, (0, 0, 0, 2)))


def _opened(one: label_pb2.RoundSummary) -> str:
    try:
        return dt.datetime.fromtimestamp(one.opened_unix_ms / 1000).strftime("%d %b %H:%M")
    except (ValueError, OverflowError, OSError):
        return _UNKNOWN


def _spent(one: label_pb2.RoundSummary) -> str:
    """Epsilon at both levels, with the delta that the client chose: without, it says nothing."""
    if not one.HasField("cost"):
        return ""
    cost = one.cost
    agent, instance = round_up(cost.epsilon_agent), round_up(cost.epsilon_instance)
    return f"epsilon {agent} agent, {instance} instance level, delta {cost.delta:g}"


def _row(one: label_pb2.RoundSummary) -> dict[str, Any]:
    """What is known of a round; a failed round may have been charged, but the service does not tell
    what."""
    cost = one.cost if one.HasField("cost") else None
    return {
        "round_id": one.round_id,
        "task": one.task or None,
        "opened_unix_ms": one.opened_unix_ms,
        "state": _STATES.get(one.state, _UNKNOWN),
        "queries": one.queries,
        "classes": one.classes,
        "ballot": kind_name(one.ballot),
        "sigma": one.sigma,
        "epsilon_agent": None if cost is None else cost.epsilon_agent,
        "epsilon_instance": None if cost is None else cost.epsilon_instance,
        "labels_epsilon_agent": None if cost is None else cost.labels_epsilon_agent,
        "labels_epsilon_instance": None if cost is None else cost.labels_epsilon_instance,
        "delta": None if cost is None else cost.delta,
        "reason": one.reason,
    }
