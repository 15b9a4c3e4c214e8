"""The feature map that a task names, made from its public parameters.

A map is fixed before any private record is seen, and maps each point by itself. Both are what the
privacy of a vote by neighbours rests on: a map that followed from private records would give every
ballot a trace of all of them, which no epsilon here counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mpc_vote.learning.features.maps import FEATURE_MAPS, FeatureMap
from mpc_vote.tasks import TableInput, Task, TaskError, TextInput
from mpc_vote.tasks.parsing import Section

Weights = Path | None

_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class _Kind:
    """Which inputs a map takes, its parameters, and how it is made; nothing heavy is imported
    before."""

    inputs: tuple[str, ...]
    make: Callable[[Task, Weights], FeatureMap]
    parameters: tuple[str, ...] = ()
    loads: bool = False
    """Whether it has weights in a file."""


def check_features(task: Task) -> None:
    """Refuses a task whose feature map is unknown, or not for its inputs; loads nothing."""
    name = task.features.map
    if name not in _KINDS:
        raise TaskError(f"features.map must be one of {', '.join(_KINDS)}, not {name!r}")
    kind = _KINDS[name]
    if task.input.kind not in kind.inputs:
        fit = ", ".join(name for name, one in _KINDS.items() if task.input.kind in one.inputs)
        raise TaskError(
            f"features.map: {name} is not for inputs of the kind {task.input.kind}; choose {fit}"
        )
    section = Section(task.features.parameters, "features")
    for parameter in kind.parameters:
        text = section.text(parameter)
        if parameter == "sha256" and not _SHA256.fullmatch(text):
            raise TaskError("features.sha256 must be 64 digits of 0-9 and a-f")
    section.done()


def check_weights(task: Task, weights: Path) -> None:
    """Refuses weights for a map that has none; loads nothing."""
    if not _KINDS[task.features.map].loads:
        raise ValueError(f"the feature map {task.features.map} has no weights: leave {weights} out")


def for_task(task: Task, weights: Weights = None) -> FeatureMap:
    """The map from inputs as they travel to float32 vectors.

    `weights` is this machine's file or folder of weights, for maps that have some; what it holds
    must have the task's checksum. Without it they are looked for where packages put them.
    """
    check_features(task)
    if weights is not None:
        check_weights(task, weights)
    return _KINDS[task.features.map].make(task, weights)


def _plain(name: str, *inputs: str) -> _Kind:
    return _Kind(inputs, lambda task, weights: FEATURE_MAPS[name])


def _standard(task: Task, weights: Weights) -> FeatureMap:
    from mpc_vote.learning.features.standard import Standard

    assert isinstance(task.input, TableInput)
    return Standard(task.input)


def _backbone(task: Task, weights: Weights) -> FeatureMap:
    from mpc_vote.learning.features.backbones import find_weights, load_backbone
    from mpc_vote.learning.features.weights import check_checksum

    name, sha256 = _texts(task, "backbone", "sha256")
    file = find_weights(name) if weights is None else weights
    if not file.is_file():
        raise FileNotFoundError(f"{file}: there is no such file of weights")
    check_checksum(file, sha256)
    return load_backbone(name, file)


def _sentence(task: Task, weights: Weights) -> FeatureMap:
    from mpc_vote.learning.features.sentence import load_sentence_model

    assert isinstance(task.input, TextInput)
    name, sha256 = _texts(task, "model", "sha256")
    return load_sentence_model(task.input, name, sha256, weights)


def _texts(task: Task, *names: str) -> list[str]:
    return [str(task.features.parameters[name]) for name in names]


_KINDS = {
    "raw": _plain("raw", "vector", "image"),
    "unit": _plain("unit", "vector", "image"),
    "strokes": _plain("strokes", "vector", "image"),
    "standard": _Kind(("table",), _standard),
    "backbone": _Kind(("image",), _backbone, ("backbone", "sha256"), loads=True),
    "sentence": _Kind(("text",), _sentence, ("model", "sha256"), loads=True),
}

DEFAULTS = {"vector": "raw", "image": "backbone", "table": "standard", "text": "sentence"}
"""The usual map for each kind of input."""
