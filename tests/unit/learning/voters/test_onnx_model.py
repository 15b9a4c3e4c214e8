"""ONNX files vote by labels, scores or named scores, and are refused where they don't fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mpc_vote.learning.voters import ModelInputs, Voter, VoterOptions, make_voter
from mpc_vote.tasks import TableInput, Task, TextInput
from mpc_vote.voting.ballots import MULTI_LABEL, ONE_HOT
from tests.unit.learning.voters.tasks import ATTRIBUTES, PICTURES, SIGNS, TABLE, TEXT, VECTORS

ROWS = np.array([[-2, 0, 0], [0.1, 0, 0], [2, 0, 0]], np.float32)
# Scores of minus, zero and plus from the first number.
WEIGHTS = np.array([[-1, 0, 1], [0, 0, 0], [0, 0, 0]], np.float32)
BIAS = np.array([0, 1, 0], np.float32)
Info = Any


def tensor(name: str, kind: int, shape: Sequence[int | str | None]) -> Info:
    return helper.make_tensor_value_info(name, kind, shape)


def saved(
    path: Path, nodes: list[Any], inputs: list[Info], outputs: list[Info], **constants: Any
) -> Path:
    graph = helper.make_graph(
        nodes,
        "model",
        inputs,
        outputs,
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def voter(path: Path, task: Task = VECTORS, inputs: str = "features") -> Voter:
    options = VoterOptions(task=task, model=str(path), inputs=ModelInputs(inputs))
    return make_voter("onnx", None, options)


def linear(batch: int | str = "n", kind: int = TensorProto.FLOAT) -> tuple[list[Any], list[Info]]:
    return (
        [helper.make_node("Gemm", ["x", "w", "b"], ["scores"])],
        [tensor("x", kind, [batch, 3])],
    )


@pytest.mark.parametrize("batch", ["n", 1, 2])
def test_the_highest_score_is_voted_for_whatever_number_of_rows_it_takes(
    batch: int | str, tmp_path: Path
) -> None:
    nodes, inputs = linear(batch)
    outputs = [tensor("scores", TensorProto.FLOAT, [batch, 3])]
    made = voter(saved(tmp_path / "m.onnx", nodes, inputs, outputs, w=WEIGHTS, b=BIAS))
    assert made.kinds == (ONE_HOT,)
    assert made.vote(ROWS, ONE_HOT).tolist() == [0, 1, 2]
    many = np.tile(ROWS, (300, 1))
    assert made.vote(many, ONE_HOT).tolist() == [0, 1, 2] * 300


def test_labels_are_taken_before_scores(tmp_path: Path) -> None:
    nodes, inputs = linear()
    nodes.append(helper.make_node("ArgMin", ["scores"], ["label"], axis=1, keepdims=0))
    outputs = [
        tensor("scores", TensorProto.FLOAT, ["n", 3]),
        tensor("label", TensorProto.INT64, ["n"]),
    ]
    made = voter(saved(tmp_path / "m.onnx", nodes, inputs, outputs, w=WEIGHTS, b=BIAS))
    assert made.vote(ROWS, ONE_HOT).tolist() == [2, 0, 0]


@pytest.mark.parametrize(
    ("names", "task"),
    [(["plus", "minus", "zero"], VECTORS), ([2, 0, 1], VECTORS), ([1, -1, 0], SIGNS)],
)
def test_named_scores_are_brought_into_the_tasks_order(
    names: list[Any], task: Task, tmp_path: Path
) -> None:
    nodes, inputs = linear()
    of_text = isinstance(names[0], str)
    labels: dict[str, Any] = {"classlabels_strings" if of_text else "classlabels_int64s": names}
    nodes.append(helper.make_node("ZipMap", ["scores"], ["named"], domain="ai.onnx.ml", **labels))
    key = TensorProto.STRING if of_text else TensorProto.INT64
    named = helper.make_sequence_type_proto(
        helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    outputs = [helper.make_value_info("named", named)]
    order = [2, 0, 1]
    path = saved(tmp_path / "m.onnx", nodes, inputs, outputs, w=WEIGHTS[:, order], b=BIAS[order])
    assert voter(path, task).vote(ROWS, ONE_HOT).tolist() == [0, 1, 2]


def test_columns_go_by_name_and_what_is_missing_is_not_a_number(tmp_path: Path) -> None:
    """High where the age is missing or the ward is b."""
    nodes = [
        helper.make_node("IsNaN", ["age"], ["missing"]),
        helper.make_node(
            "LabelEncoder",
            ["ward"],
            ["code"],
            domain="ai.onnx.ml",
            keys_strings=["b"],
            values_int64s=[1],
            default_int64=0,
        ),
        helper.make_node("Cast", ["code"], ["is_b"], to=TensorProto.BOOL),
        helper.make_node("Or", ["missing", "is_b"], ["high"]),
        helper.make_node("Cast", ["high"], ["label"], to=TensorProto.INT64),
    ]
    inputs = [
        tensor("ward", TensorProto.STRING, [None, 1]),
        tensor("age", TensorProto.FLOAT, [None, 1]),
    ]
    outputs = [tensor("label", TensorProto.INT64, [None, 1])]
    made = voter(saved(tmp_path / "m.onnx", nodes, inputs, outputs), TABLE, "raw")
    assert isinstance(TABLE.input, TableInput)
    rows = TABLE.input.encode({"age": [50, None, 50, 50], "ward": ["a", "a", "b", "other"]})
    assert made.vote(rows, ONE_HOT).tolist() == [0, 1, 1, 0]


def test_texts_come_as_they_are(tmp_path: Path) -> None:
    nodes = [
        helper.make_node(
            "LabelEncoder",
            ["texts"],
            ["label"],
            domain="ai.onnx.ml",
            keys_strings=["win now"],
            values_int64s=[1],
            default_int64=0,
        )
    ]
    inputs = [tensor("texts", TensorProto.STRING, [None])]
    outputs = [tensor("label", TensorProto.INT64, [None])]
    made = voter(saved(tmp_path / "m.onnx", nodes, inputs, outputs), TEXT, "raw")
    assert isinstance(TEXT.input, TextInput)
    assert made.vote(TEXT.input.encode(["hello", "win now"]), ONE_HOT).tolist() == [0, 1]


@pytest.mark.parametrize("shape", [["n", 3, 4, 5], ["n", 4, 5, 3], [None, None, None, None]])
@pytest.mark.parametrize(("kind", "white"), [(TensorProto.FLOAT, 1.0), (TensorProto.UINT8, 255)])
def test_pixels_are_bytes_or_parts_of_one_with_channels_where_the_model_has_them(
    shape: list[Any], kind: int, white: float, tmp_path: Path
) -> None:
    """Bright where the middle of all values is above half of white."""
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["f"], ["flat"]),
        helper.make_node("ReduceMean", ["flat"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("Greater", ["mean", "half"], ["bright"]),
        helper.make_node("Cast", ["bright"], ["label"], to=TensorProto.INT64),
    ]
    half = np.array(white / 2, np.float32)
    outputs = [tensor("label", TensorProto.INT64, ["n"])]
    path = saved(tmp_path / "m.onnx", nodes, [tensor("x", kind, shape)], outputs, half=half)
    pictures = np.stack([np.full((3, 4, 5), value, np.uint8) for value in (10, 200)])
    assert voter(path, PICTURES, "raw").vote(pictures, ONE_HOT).tolist() == [0, 1]


def test_attributes_are_cast_by_their_scores(tmp_path: Path) -> None:
    nodes = [helper.make_node("Sigmoid", ["x"], ["scores"])]
    inputs, outputs = ([tensor(name, TensorProto.FLOAT, ["n", 2])] for name in ("x", "scores"))
    made = voter(saved(tmp_path / "m.onnx", nodes, inputs, outputs), ATTRIBUTES)
    assert made.kinds == (MULTI_LABEL,)
    found = made.vote(np.array([[-3, 3]], np.float32), MULTI_LABEL)
    assert (found > 0.5).tolist() == [[False, True]]


def _with_shape(shape: Sequence[int | str | None], kind: int = TensorProto.FLOAT) -> Any:
    def save(path: Path) -> Path:
        nodes = [helper.make_node("Identity", ["x"], ["scores"])]
        return saved(path, nodes, [tensor("x", kind, shape)], [tensor("scores", kind, shape)])

    return save


def _not_a_model(path: Path) -> Path:
    path.write_bytes(b"not a model")
    return path


@pytest.mark.parametrize(
    ("save", "why"),
    [
        (_with_shape(["n", 4]), r"takes x: float32 \(any, 4\), and a row to give has the shape"),
        (_with_shape(["n", 3], TensorProto.STRING), "there are numbers to give"),
        (_with_shape(["n", 3], TensorProto.BOOL), "which no task gives"),
        (_with_shape(["n", 3], TensorProto.UINT8), "no output with labels or with a score"),
        (_not_a_model, "onnxruntime can't run it"),
    ],
)
def test_what_does_not_fit_the_task_is_said_at_the_start(
    save: Callable[[Path], Path], why: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=why):
        voter(save(tmp_path / "m.onnx"))


def test_scores_of_other_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 3 scores, and the classes are 2"):
        nodes, inputs = linear()
        outputs = [tensor("scores", TensorProto.FLOAT, ["n", 3])]
        path = saved(tmp_path / "m.onnx", nodes, inputs, outputs, w=WEIGHTS, b=BIAS)
        task = Task.from_wire(VECTORS.wire.replace(b'"zero",', b""))
        voter(path, task)


def test_inputs_that_are_no_columns_of_the_task_are_named(tmp_path: Path) -> None:
    save = _with_shape([None, 1])
    with pytest.raises(ValueError, match="takes x, which the task has no columns for"):
        voter(save(tmp_path / "m.onnx"), TABLE, "raw")
