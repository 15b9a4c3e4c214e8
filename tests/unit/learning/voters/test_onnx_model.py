"""ONNX files vote by labels, scores or named scores, and are refused where they don't fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mpc_vote.learning.voters import ModelInputs, Voter, VoterOptions, make_voter, onnx_file
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


def _elsewhere(where: str, path: Path) -> Path:
    """A model of which one tensor, at this place, has its values in another file."""
    (path.parent / "key.pem").write_bytes(b"-----BEGIN")
    outside = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL
    )
    outside.external_data.add(key="location", value="key.pem")
    info = tensor("scores", TensorProto.FLOAT, ["n", 3])
    inner = helper.make_graph([], "inner", [], [info], [outside])
    indices = helper.make_tensor("i", TensorProto.INT64, [2], [0, 1])
    nodes = {
        "a constant": [helper.make_node("Constant", [], ["c"], value=outside)],
        "a branch": [helper.make_node("If", ["x"], ["y"], then_branch=inner)],
        "a sparse constant": [
            helper.make_node(
                "Constant", [], ["c"], sparse_value=helper.make_sparse_tensor(outside, indices, [9])
            )
        ],
    }.get(where, [helper.make_node("Identity", ["x"], ["scores"])])
    initial = [outside] if where == "an initial value" else []
    graph = helper.make_graph(
        nodes, "model", [tensor("x", TensorProto.FLOAT, ["n", 3])], [info], initial
    )
    functions = []
    if where == "a function":
        constant = helper.make_node("Constant", [], ["c"], value=outside)
        opsets = [helper.make_opsetid("", 17)]
        functions = [helper.make_function("own", "f", [], ["c"], [constant], opsets)]
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    "where", ["an initial value", "a constant", "a sparse constant", "a branch", "a function"]
)
def test_a_model_reads_no_other_file(where: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"values in another file .*save it as one file"):
        voter(_elsewhere(where, tmp_path / "m.onnx"))


def test_all_ways_to_a_tensor_are_looked_at() -> None:
    """By the schema of the package onnx."""
    messages: dict[str, dict[int, str]] = {}

    def collect(message: Any) -> None:
        if message.name not in messages:
            inner = {f.number: f.message_type for f in message.fields if f.message_type}
            messages[message.name] = {number: one.name for number, one in inner.items()}
            for one in inner.values():
                collect(one)

    collect(onnx.ModelProto.DESCRIPTOR)
    leading = {"TensorProto"}
    for _ in messages:
        leading |= {name for name, inner in messages.items() if leading & set(inner.values())}
    found = {
        name: {number: inner for number, inner in messages[name].items() if inner in leading}
        for name in leading
    }
    assert found == onnx_file.PATHS
    fields = TensorProto.DESCRIPTOR.fields_by_name
    assert fields["external_data"].number == onnx_file.EXTERNAL_DATA
    assert fields["data_location"].number == onnx_file.DATA_LOCATION


def test_a_file_in_the_runtimes_own_format_is_not_loaded(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "m.onnx",
        *linear(),
        [tensor("scores", TensorProto.FLOAT, ["n", 3])],
        w=WEIGHTS,
        b=BIAS,
    )
    settings = onnxruntime.SessionOptions()
    settings.optimized_model_filepath = str(tmp_path / "m.ort")
    settings.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    with pytest.raises(ValueError, match=r"m\.ort: it is no ONNX model|onnxruntime can't run it"):
        voter(tmp_path / "m.ort")


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
        (_not_a_model, "it is no ONNX model"),
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
