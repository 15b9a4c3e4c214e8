"""The feature map for a new task, with the checksum of its weights on this machine."""

from __future__ import annotations

from pathlib import Path

from mpc_vote.learning.features.by_task import DEFAULTS
from mpc_vote.tasks import Features, Input

LITE = "efficientnet-lite0"


def draft_features(
    schema: Input, name: str | None = None, model: str | None = None, weights: Path | None = None
) -> Features:
    """A map for these inputs, the usual one if none is named; `model` is the name of its network,
    whose weights are those of a package unless a file or a folder is given."""
    name = name or DEFAULTS[schema.kind]
    if name == "backbone":
        return Features(name, _backbone(model or LITE, weights))
    if name == "sentence":
        return Features(name, _sentence(model, weights))
    if model is not None or weights is not None:
        raise ValueError(f"the feature map {name} has no model or weights: leave them out")
    return Features(name)


def _backbone(model: str, weights: Path | None) -> dict[str, str]:
    from mpc_vote.learning.features.backbones import find_weights, load_backbone
    from mpc_vote.learning.features.weights import checksum

    file = find_weights(model) if weights is None else weights
    load_backbone(model, file)  # which refuses what are no weights of it
    return {"backbone": model, "sha256": checksum(file)}


def _sentence(model: str | None, weights: Path | None) -> dict[str, str]:
    from mpc_vote.learning.features.sentence import PACKAGED, find_model, model_checksum

    model = model or (PACKAGED if weights is None else weights.resolve().name)
    return {"model": model, "sha256": model_checksum(find_model(model, weights))}
