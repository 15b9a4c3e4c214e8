"""Votes of a model in an ONNX file, run by onnxruntime on one thread of the CPU.

An ONNX file holds a graph of known operators and numbers, and no code; `onnx_file` sees to it that
its numbers are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters import VoterOptions, onnx_file
from mpc_vote.learning.voters.answers import (
    Fault,
    FaultyAnswer,
    PredictionVoter,
    known_places,
)
from mpc_vote.learning.voters.files import model_file
from mpc_vote.learning.voters.questions import Question
from mpc_vote.learning.voters.tensor_inputs import Array, Tensor, batch_of, fitting, in_parts

_DTYPES = {
    "tensor(float16)": np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(uint8)": np.uint8,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(string)": np.object_,
}
_LABELS = ("tensor(int32)", "tensor(int64)", "tensor(string)")
_SCORES = ("tensor(float16)", "tensor(float)", "tensor(double)")
_MAPS = ("seq(map(int64,tensor(float)))", "seq(map(string,tensor(float)))")


def make(data: Dataset | None, options: VoterOptions) -> PredictionVoter:
    """The voter of the model in `--model`. See `PredictionVoter` for what is accounted.

    The model's labels are cast where it has such an output, else the highest of its scores; scores
    are in the order of the task's classes, or come with names.
    """
    question = Question.of(data, options)
    path = model_file(options, "an ONNX model")
    content = onnx_file.contained(path)
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    # Else bytes may be taken for a format of its own, which has not been looked at.
    settings.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        session = onnxruntime.InferenceSession(
            content, settings, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime has many, of no common type
        raise ValueError(f"{path}: onnxruntime can't run it: {error}") from error
    try:
        tensors = [_tensor(one) for one in session.get_inputs()]
        fit, batch = fitting(question, tensors), batch_of(tensors)
        name, read = _output(session.get_outputs(), question)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error

    def run(arrays: list[Array]) -> list[Any]:
        feeds = {tensor.name: array for tensor, array in zip(tensors, arrays, strict=True)}
        outputs: list[Any] = session.run([name], feeds)
        return outputs

    def predict(given: Any) -> Any:
        return np.concatenate([read(part[0]) for part in in_parts(run, fit(given), batch)])

    return PredictionVoter(question, predict)


def _tensor(one: Any) -> Tensor:
    if one.type not in _DTYPES:
        raise ValueError(f"its input {one.name} is a {one.type}, which no task gives")
    shape = tuple(side if isinstance(side, int) and side > 0 else None for side in one.shape)
    return Tensor(one.name, np.dtype(_DTYPES[one.type]), shape)


def _output(outputs: Any, question: Question) -> tuple[str, Callable[[Any], Array]]:
    """The output that is voted by, and how it is read."""
    if not question.attributes:
        for one in outputs:
            if one.type in _LABELS and len(one.shape) in (1, 2) and one.shape[1:] in ([], [1]):
                return one.name, lambda found: np.asarray(found).reshape(-1)
        for one in outputs:
            if one.type in _MAPS:
                return one.name, lambda found: _likeliest(found, question.classes)
    for one in outputs:
        if one.type in _SCORES and len(one.shape) == 2:
            count = one.shape[1]
            if isinstance(count, int) and count != len(question.classes):
                raise ValueError(
                    f"its output {one.name} has {count} scores, and the classes are "
                    f"{len(question.classes)}"
                )
            return one.name, np.asarray
    shown = ", ".join(f"{one.name}: {one.type} {one.shape}" for one in outputs)
    raise ValueError(f"it has no output with labels or with a score for each class, but {shown}")


def _likeliest(found: list[dict[Any, float]], classes: tuple[str, ...]) -> Array:
    """The label of the highest score in each row, the first of equals in the task's order."""
    if not found:
        return np.empty(0, dtype=np.int64)
    names = list(found[0])
    if not names or any(named.keys() != found[0].keys() for named in found):
        raise ValueError("the model's scores are not of the same labels for each query")
    order = np.argsort(known_places(np.array(names), classes), kind="stable")
    scores = np.array([[named[names[place]] for place in order] for named in found])
    if np.isnan(scores).any():
        raise FaultyAnswer(Fault.NAN, "scores hold NaN: repair the model before it votes")
    likeliest: Array = np.array(names)[order[np.argmax(scores, axis=1)]]
    return likeliest
