"""The server's global model, trained on public queries and the labels that the vote revealed.

It only ever sees released labels, so by post-processing it and all that it predicts cost no
privacy beyond the vote's. Some labels are wrong by design of the noise: augmentation, smoothed
targets and weight decay keep the network from learning those by heart.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from mpc_vote.data.dataset import FloatArray, LabelArray
from mpc_vote.learning.nets.networks import (
    Architecture,
    Network,
    NetworkRecipe,
    Progress,
    fit,
    predict_scores,
)
from mpc_vote.learning.students import model_file
from mpc_vote.learning.students.lesson import Doubles, Lesson, Places, mapped
from mpc_vote.learning.students.model_file import Packed, Stored
from mpc_vote.learning.students.packed import PackedModel
from mpc_vote.learning.students.single import SingleStudent

_STEPS, _TRIAL_STEPS = 500, 250
_BATCH = 32


class Student(PackedModel):
    """A trained network with its metrics and the metadata it was stored with; it takes points as
    they are, or their `features`."""

    def __init__(
        self,
        network: Network,
        metrics: Mapping[str, float] | None = None,
        metadata: Mapping[str, str] | None = None,
        features: str = "",
    ) -> None:
        self._network, self._features = network, features
        self.metrics = dict(metrics or {})
        self.metadata = dict(metadata or {})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one point, or of its features."""
        return self._network.architecture.shape

    def on_features(self, features: str) -> Student:
        """The same network, for points that are seen through this feature map first."""
        return Student(self._network, self.metrics, self.metadata, features)

    @property
    def classes(self) -> int:
        return self._network.architecture.classes

    def scores(self, x: FloatArray) -> FloatArray:
        """Softmax scores, (rows, classes)."""
        return predict_scores(self._network, mapped(self._features)(x) if self._features else x)

    def pack(self) -> Packed:
        own = {
            model_file.READER: "network",
            model_file.ARCHITECTURE: self._network.architecture.to_json(),
            model_file.FEATURES: self._features,
        }
        return Packed(self._network.state_dict(), own)

    @classmethod
    def unpack(cls, stored: Stored) -> Student:
        """Every array is checked for name, shape and type. They are the only memory that is taken:
        a file can name an architecture of any size."""
        architecture = stored.says(model_file.ARCHITECTURE)
        try:
            with torch.device("meta"):
                network = Network(Architecture.from_json(architecture))
            _check_arrays(network.state_dict(), stored.arrays)
        except ValueError as error:
            raise ValueError(f"{stored.path}: {error}") from error
        network.load_state_dict(stored.arrays, assign=True)
        network.eval()
        features = stored.own.get(model_file.FEATURES, "")  # not in files of version 0.2
        return cls(network, metadata=stored.metadata, features=features)


def train_student(
    x: FloatArray,
    y: LabelArray,
    classes: int,
    seed: int,
    *,
    steps: int = _STEPS,
    on_progress: Progress | None = None,
    validation: tuple[FloatArray, LabelArray] | None = None,
) -> Student:
    """Train on labels that may be wrong; `validation` is only scored, never trained on.

    The number of steps is about the same for any number of points, and so is the time.
    """
    batches = max(1, len(x) // _BATCH)
    recipe = NetworkRecipe(
        epochs=min(200, max(5, round(steps / batches))),
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


class Supervised(SingleStudent):
    """The student `network`: it learns from labelled points alone, whatever others there are."""

    load = staticmethod(Student.load)

    def guess(self, part: Lesson, rows: Places) -> Doubles:
        """By a network of half the steps."""
        x, classes = part.public.inputs, part.classes
        student = train_student(x[part.asked], part.labels, classes, part.seed, steps=_TRIAL_STEPS)
        return student.scores(x[rows]).astype(np.float64)

    def learn(self) -> Student:
        lesson = self.lesson
        x, y = lesson.public.inputs[lesson.asked], lesson.labels
        student = train_student(x, y, lesson.classes, lesson.seed, on_progress=lesson.on_progress)
        return student.on_features(lesson.public.input_features)


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
