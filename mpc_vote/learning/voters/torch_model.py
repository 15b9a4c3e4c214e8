"""Votes of an exported program of torch (`torch.export.save`, a .pt2 file), on one thread of the
CPU. `torch_archive` says what is loaded of such a file, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters import VoterOptions
from mpc_vote.learning.voters.answers import PredictionVoter
from mpc_vote.learning.voters.files import model_file
from mpc_vote.learning.voters.questions import Question
from mpc_vote.learning.voters.tensor_inputs import Array, Tensor, batch_of, fitting, in_parts


def make(data: Dataset | None, options: VoterOptions) -> PredictionVoter:
    """The voter of the program in `--model`. See `PredictionVoter` for what is accounted.

    It takes one tensor and gives one: scores in the order of the task's classes, or their places.
    """
    question = Question.of(data, options)
    path = model_file(options, "an exported program of torch (.pt2)")
    import torch

    from mpc_vote.learning.voters import torch_archive

    program = torch_archive.load(path)
    torch.set_num_threads(1)
    module = program.module()
    try:
        tensors = [_tensor(program, name) for name in program.graph_signature.user_inputs]
        fit, batch = fitting(question, tensors), batch_of(tensors)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error

    def run(arrays: list[Array]) -> list[Any]:
        with torch.inference_mode():
            output = module(*(torch.from_numpy(array) for array in arrays))
        if not isinstance(output, torch.Tensor) or output.ndim == 0:
            raise ValueError("the program must give one tensor with a row for each of its input")
        return [output.numpy(force=True)]

    def predict(given: Any) -> Any:
        return np.concatenate([part[0] for part in in_parts(run, fit(given), batch)])

    return PredictionVoter(question, predict)


def _tensor(program: Any, name: Any) -> Tensor:
    """An input of the program; a side that may vary is a symbol in it."""
    import torch

    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and node.name == name and isinstance(value, torch.Tensor):
            dtype = np.dtype(str(value.dtype).removeprefix("torch."))
            return Tensor(name, dtype, tuple(s if type(s) is int else None for s in value.shape))
    raise ValueError(f"its input {name!r} is no tensor")
