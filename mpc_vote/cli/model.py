"""`mpc-vote model`: lists the versions of the global model, fetches one, or asks it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from rich.table import Table

from mpc_vote.app import process
from mpc_vote.app.process import CommandError
from mpc_vote.cli.common import (
    ClientSettings,
    check_writable,
    connect,
    console,
    read_array,
    write_json,
)
from mpc_vote.privacy.rounding import round_up
from mpc_vote.proto.mpcvote.v1 import model_pb2


class ModelSettings(ClientSettings):
    """Lists the versions of the global model; with --out fetches one, with --inputs asks it."""

    command: ClassVar[str] = "model"

    version: int = Field(0, ge=0, description="version to fetch or ask; 0 is the newest")
    out: Path | None = Field(None, description="safetensors file to write the model to")
    inputs: Path | None = Field(None, description=".npy file of inputs to predict")
    labels: Path | None = Field(None, description=".npy file to write predictions to")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote model`."""
    return process.run(ModelSettings, arguments, _main)


async def _main(settings: ModelSettings) -> None:
    if (settings.inputs is None) != (settings.labels is None):
        raise CommandError("predictions need both --inputs and --labels")
    for path in (settings.out, settings.labels, settings.json_path):
        check_writable(path)
    inputs = read_array(settings.inputs) if settings.inputs else None
    out = console(settings.json_path, markup=False)
    async with connect(settings) as client:
        models = await client.models()
        out.print(describe(models) if models else "no model yet: run mpc-vote train")
        if settings.out is not None:
            model, content = await client.model(settings.version)
            settings.out.write_bytes(content)
            out.print(f"version {model.version} written to {settings.out}")
        if inputs is not None and settings.labels is not None:
            labels = await client.predict(inputs, settings.version)
            with settings.labels.open("wb") as file:
                np.save(file, labels)
            out.print(f"{len(labels)} predictions written to {settings.labels}")
    write_json(settings.json_path, {"models": [figures(model) for model in models]})


def describe(models: Sequence[model_pb2.Model]) -> Table:
    """Versions as a table."""
    table = Table(
        "version", "labels", "unlabelled", "epsilon agent", "epsilon instance", "delta", "metrics"
    )
    for model in models:
        table.add_row(
            str(model.version),
            str(model.labels),
            str(model.unlabelled),
            round_up(model.epsilon_agent),
            round_up(model.epsilon_instance),
            f"{model.delta:g}",
            ", ".join(f"{name} {value:.4g}" for name, value in sorted(model.metrics.items())),
        )
    return table


def figures(model: model_pb2.Model) -> dict[str, Any]:
    """A version's description, under keys that stay."""
    return {
        "version": model.version,
        "round_ids": list(model.round_ids),
        "labels": model.labels,
        "unlabelled": model.unlabelled,
        "classes": model.classes,
        "student": model.student,
        "epsilon_agent": model.epsilon_agent,
        "epsilon_instance": model.epsilon_instance,
        "delta": model.delta,
        "metrics": dict(model.metrics),
        "sha256": model.sha256.hex(),
    }
