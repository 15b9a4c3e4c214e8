"""The server's global model, trained on public queries and the labels that the vote revealed.

It only ever sees released labels, so by post-processing it and all that it predicts cost no
privacy beyond the vote's. Some labels are wrong by design of the noise: augmentation, smoothed
targets and weight decay keep the network from learning those by heart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from mpc_vote.data.dataset import FloatArray, LabelArray
from mpc_vote.learning.nets.networks import (
    Architecture,
    Network,
    NetworkRecipe,
    Progress,
    fit,
    predict_scores,
)
from mpc_vote.learning.students import StudentOptions
from mpc_vote.learning.students.classifier import GlobalModel

_ARCHITECTURE = "mpc_vote.architecture"
_STEPS = 500
_BATCH = 32


class Student(GlobalModel):
    """A trained network with its metrics and the metadata it was stored with."""

    metrics: dict[str, float]

    def __init__(
        self,
        network: Network,
        metrics: Mapping[str, float] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._network = network
        self.metrics = dict(metrics or {})
        self.metadata = dict(metadata or {})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one point."""
        return self._network.architecture.shape

    @property
    def classes(self) -> int:
        return self._network.architecture.classes

    def scores(self, x: FloatArray) -> FloatArray:
        """Softmax scores, (rows, classes)."""
        return predict_scores(self._network, x)

    def save(self, path: str | Path, metadata: Mapping[str, str]) -> None:
        """Write safetensors, whole or not at all; `metadata` is kept beside the architecture."""
        if _ARCHITECTURE in metadata:
            raise ValueError(f"{_ARCHITECTURE} is written by the model itself")
        if not all(isinstance(part, str) for item in metadata.items() for part in item):
            raise ValueError("metadata must map strings to strings")
        path = Path(path)
        draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
        stored = {**metadata, _ARCHITECTURE: self._network.architecture.to_json()}
        try:
            save_file(self._network.state_dict(), draft, metadata=stored)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> Student:
        """Read what `save` wrote; every array is checked for name, shape, type and finiteness."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such model file")
        try:
            with safe_open(path, framework="pt") as stored:
                metadata = dict(stored.metadata() or {})
                arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{path}: not a safetensors file ({error})") from error
        if _ARCHITECTURE not in metadata:
            raise ValueError(f"{path}: a safetensors file, but not of a student")
        try:
            network = Network(Architecture.from_json(metadata.pop(_ARCHITECTURE)))
            _check_arrays(network.state_dict(), arrays)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        network.load_state_dict(arrays)
        network.eval()
        return cls(network, metadata=metadata)


def train_student(
    x: FloatArray,
    y: LabelArray,
    classes: int,
    seed: int,
    *,
    on_progress: Progress | None = None,
    validation: tuple[FloatArray, LabelArray] | None = None,
) -> Student:
    """Train on labels that may be wrong; `validation` is only scored, never trained on.

    The number of steps is about the same for any number of points, and so is the time.
    """
    batches = max(1, len(x) // _BATCH)
    recipe = NetworkRecipe(
        epochs=min(200, max(5, round(_STEPS / batches))),
        batch=_BATCH,
        rate=4e-3,
        decay=0.05,
        smoothing=0.2,
        augment=True,
    )
    network, loss = fit(x, y, classes, seed, recipe, on_progress)
    student = Student(network)
    student.metrics = {"loss": loss, "agreement": student.agreement(x, y)}
    if validation is not None:
        student.metrics["validation_agreement"] = student.agreement(*validation)
    return student


class Supervised:
    """The student that learns from labelled points alone."""

    load = staticmethod(Student.load)

    @staticmethod
    def train(
        x: FloatArray, y: LabelArray, unlabelled: FloatArray | None, options: StudentOptions
    ) -> Student:
        """See `StudentFactory`."""
        if unlabelled is not None:
            raise ValueError("it learns from labelled points alone: send no others")
        return train_student(x, y, options.classes, options.seed, on_progress=options.on_progress)


def _check_arrays(expected: Mapping[str, torch.Tensor], arrays: Mapping[str, torch.Tensor]) -> None:
    """The arrays are those of the architecture, no more and no less, and finite."""
    if expected.keys() != arrays.keys():
        odd = ", ".join(sorted(expected.keys() ^ arrays.keys()))
        raise ValueError(f"arrays do not fit the architecture: {odd}")
    for name, array in arrays.items():
        want = expected[name]
        if array.shape != want.shape or array.dtype != want.dtype:
            raise ValueError(
                f"array {name} is {array.dtype} {tuple(array.shape)}, "
                f"not {want.dtype} {tuple(want.shape)}"
            )
        if not bool(torch.isfinite(array).all()):
            raise ValueError(f"array {name} holds NaN or infinity")
