"""Models that agents of the demo bring: trained with other tools, each on one agent's part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpc_vote.data.dataset import Dataset, FloatArray, LabelArray
from mpc_vote.learning.voters import VoterOptions, make_voter
from mpc_vote.tasks import Task
from mpc_vote.testbed.demo.subject import Predict
from mpc_vote.voting.ballots import ONE_HOT

_OPSET = 17


@dataclass(frozen=True)
class Brought:
    """How a model of a kind is made: from features and labels to a file with this ending."""

    ending: str
    train: Callable[[FloatArray, LabelArray, Path], None]


def voter_of(settings: Mapping[str, str], task: Task, part: Dataset, seed: int) -> Predict:
    """What an agent with these settings says by itself."""
    options = VoterOptions(
        k=task.vote.k or int(settings.get("k", "1")),
        task=task,
        seed=seed,
        model=settings.get("model", ""),
    )
    voter = make_voter(settings["voter"], part, options)
    return lambda queries: voter.vote(queries, ONE_HOT)


def _regression(x: FloatArray, y: LabelArray) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1_000).fit(x, y)


def _skops(x: FloatArray, y: LabelArray, path: Path) -> None:
    """A logistic regression as scikit-learn has it."""
    import skops.io

    skops.io.dump(_regression(x, y), path)


def _onnx(x: FloatArray, y: LabelArray, path: Path) -> None:
    """A logistic regression as a graph of one layer: a score for each class."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    fitted = _regression(x, y)
    weights = np.stack([-fitted.coef_[0], fitted.coef_[0]], axis=1).astype(np.float32)
    bias = np.array([-fitted.intercept_[0], fitted.intercept_[0]], dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["features", "weights", "bias"], ["scores"])],
        "linear",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", x.shape[1]])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(bias, "bias")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
    made.ir_version = 10
    onnx.checker.check_model(made)
    onnx.save(made, path)


BROUGHT = {"sklearn": Brought(".skops", _skops), "onnx": Brought(".onnx", _onnx)}
