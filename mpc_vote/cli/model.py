"""`mpc-vote model`: lists the versions of the global model, fetches one, or asks it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpc_vote.app import process
from mpc_vote.app.process import CommandError
from mpc_vote.cli.against import EXPLAINED, by_labels
from mpc_vote.cli.common import (
    ClientSettings,
    check_ending,
    check_labels_file,
    check_writable,
    connect,
    console,
    load_task,
    read_rows,
    write_json,
    write_labels,
)
from mpc_vote.privacy.rounding import round_up
from mpc_vote.results import COMMONEST, Model


class ModelSettings(ClientSettings):
    """Lists the versions of the global model; with --out fetches one, with --inputs asks it."""

    command: ClassVar[str] = "model"

    version: int = Field(0, ge=0, description="version to fetch or ask; 0 is the newest")
    out: Path | None = Field(None, description=".safetensors file to write the model to")
    task: Path | None = Field(
        None, description="the file of the task that the model is for: predictions have names"
    )
    inputs: Path | None = Field(
        None,
        description="inputs to predict: what the task's readers read; without a task an .npy file",
    )
    labels: Path | None = Field(
        None,
        description="file to write predictions to: numbers to .npy; with a task also .csv, .tsv or "
        ".parquet, by name, beside the inputs",
    )


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote model`."""
    return process.run(ModelSettings, arguments, _main)


async def _main(settings: ModelSettings) -> None:
    if (settings.inputs is None) != (settings.labels is None):
        raise CommandError("predictions need both --inputs and --labels")
    if settings.version and settings.out is None and settings.inputs is None:
        raise CommandError("--version is for a model to fetch or ask: pass --out, or --inputs")
    task = load_task(settings.task)
    check_ending(settings.out, (".safetensors",))
    read = (settings.inputs, settings.task)
    check_writable(settings.out, *read)
    check_labels_file(settings.labels, task, settings.out, *read)
    check_writable(settings.json_path, settings.out, settings.labels, *read)
    inputs = read_rows(settings.inputs, task) if settings.inputs else None
    out = console(settings.json_path, markup=False)
    async with connect(settings) as client:
        models = await client.models()
        if models:
            describe(out, models)
        elif settings.out is not None or inputs is not None:
            raise CommandError("there is no model yet: run mpc-vote train")
        else:
            out.print("no model yet: run mpc-vote train")
        if settings.out is not None:
            model, content = await client.model(settings.version, task=task)
            settings.out.write_bytes(content)
            out.print(f"version {model.version} written to {settings.out}")
        if inputs is not None and settings.labels is not None:
            labels = await client.predict(inputs.rows, settings.version, task=task)
            write_labels(settings.labels, labels, task, inputs)
            out.print(f"{len(labels)} predictions written to {settings.labels}")
    write_json(settings.json_path, {"models": [figures(model) for model in models]})


def describe(out: Console, models: Sequence[Model]) -> None:
    """Versions as a table, and then how good each is in lines of its own: 80 columns are few."""
    levels = ("epsilon\nagent", "epsilon\ninstance")
    table = Table("version", "task", "labels", "unlabelled", *levels, "delta", box=None)
    for model in models:
        table.add_row(
            str(model.version),
            model.task,
            str(model.labels),
            str(model.unlabelled),
            round_up(model.epsilon_agent),
            round_up(model.epsilon_instance),
            f"{model.delta:g}",
        )
    out.print(table)
    for model in models:
        out.print(f"version {model.version}, by labels: epsilon {by_labels(model)}")
    if models:
        out.print(EXPLAINED)
    for model in models:
        if model.metrics:
            told = (f"{name} {value:.4g}" for name, value in sorted(model.metrics.items()))
            out.print(f"version {model.version}: {', '.join(told)}")
        if model.says_little:
            share = model.metrics[COMMONEST]
            warning = (
                f": version {model.version} agrees with labels no more often than always saying "
                f"the commonest of them would ({share:.4g}): it may say nothing else"
            )
            out.print(Text.assemble(("warning", "yellow"), warning))


def figures(model: Model) -> dict[str, Any]:
    """A version's description, under stable keys."""
    return {
        "version": model.version,
        "task": model.task or None,
        "round_ids": list(model.round_ids),
        "labels": model.labels,
        "unlabelled": model.unlabelled,
        "classes": model.classes,
        "student": model.student,
        "epsilon_agent": model.epsilon_agent,
        "epsilon_instance": model.epsilon_instance,
        "labels_epsilon_agent": model.labels_epsilon_agent,
        "labels_epsilon_instance": model.labels_epsilon_instance,
        "delta": model.delta,
        "metrics": dict(model.metrics),
        "sha256": model.sha256.hex(),
    }
