"""Students from estimators of scikit-learn, or of anything with `fit` and `predict_proba`.

    forest = from_estimator(RandomForestClassifier(300))

in a module of yours makes a student for `--student my_module:forest`. Models are stored by skops,
which on reading builds objects of known types only and never runs code of the file's choice.
"""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import FloatArray, LabelArray
from mpc_vote.learning.students import StudentOptions, model_file
from mpc_vote.learning.students.lesson import Doubles, Lesson, Sight
from mpc_vote.learning.students.model_file import Packed, Stored
from mpc_vote.learning.students.packed import PackedModel


class EstimatorModel(PackedModel):
    """A fitted estimator, on points as vectors through the task's feature map."""

    def __init__(self, estimator: Any, see: Sight, shape: tuple[int, ...], classes: int) -> None:
        self._estimator, self._see, self.shape = estimator, see, shape
        self._classes = classes
        self.metrics = {}

    @property
    def classes(self) -> int:
        return self._classes

    def scores(self, x: FloatArray) -> Doubles:
        """Chances of classes, (rows, classes); 0 for a class that no label had."""
        if tuple(x.shape[1:]) != self.shape:
            raise ValueError(f"a point has shape {x.shape[1:]}, the model takes {self.shape}")
        scores = np.zeros((len(x), self._classes))
        if len(x):
            known = np.asarray(self._estimator.classes_, dtype=np.int64)
            scores[:, known] = self._estimator.predict_proba(self._see(x))
        return scores

    def pack(self) -> Packed:
        """The estimator as the bytes that skops makes of it."""
        stored = bytearray(_skops().dumps(self._estimator))
        arrays: dict[str, npt.NDArray[Any]] = {
            "centre": self._see.centre,
            "scale": self._see.scale,
            "estimator": np.frombuffer(stored, dtype=np.uint8),
        }
        own = {
            model_file.READER: "estimator",
            model_file.FEATURES: self._see.features,
            model_file.SHAPE: json.dumps(self.shape),
            model_file.CLASSES: str(self._classes),
        }
        return Packed(arrays, own)

    @classmethod
    def unpack(cls, stored: Stored, trusted: Sequence[str] = ()) -> EstimatorModel:
        """Of skops' own types and those in `trusted`, by full name."""
        arrays = dict(stored.arrays)
        if "estimator" not in arrays:
            raise ValueError(f"{stored.path}: there is no estimator in it")
        content = arrays.pop("estimator").numpy().tobytes()
        centre, scale = stored._replace(arrays=arrays).doubles(centre="d", scale="d")
        if _unpacked(content) > len(content):
            raise ValueError(f"{stored.path}: the estimator is packed, and would take more memory")
        skops = _skops()
        unknown = sorted(set(skops.get_untrusted_types(data=content)) - set(trusted))
        if unknown:
            raise ValueError(
                f"{stored.path}: the estimator has types that are not trusted: "
                f"{', '.join(unknown)}; name them in from_estimator(..., trusted=[...]) if they are"
            )
        see = Sight(stored.says(model_file.FEATURES), centre, scale)
        shape, classes = stored.shape, stored.classes
        return cls(skops.loads(content, trusted=list(trusted)), see, shape, classes)


@dataclass(frozen=True, eq=False)
class EstimatorStudent:
    """Fits copies of an estimator; points without labels only say on which scale the others lie."""

    estimator: Any
    trusted: tuple[str, ...] = ()

    def train(
        self, x: FloatArray, y: LabelArray, unlabelled: FloatArray | None, options: StudentOptions
    ) -> EstimatorModel:
        """See `StudentFactory`."""
        lesson = Lesson.of(x, y, unlabelled, options)
        estimator = copy.deepcopy(self.estimator)
        parameters = estimator.get_params() if hasattr(estimator, "get_params") else {}
        if "random_state" in parameters and parameters["random_state"] is None:
            estimator.set_params(random_state=lesson.seed % (1 << 32))
        estimator.fit(lesson.public.vectors[lesson.asked], lesson.labels)
        model = EstimatorModel(estimator, lesson.public.see, lesson.public.shape, lesson.classes)
        model.metrics["agreement"] = model.agreement(x, y)
        lesson.tell(1, 1, 1 - model.metrics["agreement"])
        return model

    def load(self, path: Path) -> EstimatorModel:
        """See `StudentFactory`."""
        return EstimatorModel.unpack(model_file.read(Path(path)), self.trusted)


def from_estimator(estimator: Any, trusted: Sequence[str] = ()) -> EstimatorStudent:
    """A student that fits copies of this estimator, with the client's seed where it takes a
    `random_state` and has none. `trusted` are types beyond skops' own that its files may hold."""
    for method in ("fit", "predict_proba"):
        if not callable(getattr(estimator, method, None)):
            raise TypeError(f"{type(estimator).__name__} has no {method}(): it gives no chances")
    return EstimatorStudent(estimator, tuple(trusted))


def _unpacked(content: bytes) -> int:
    """Bytes of all that skops' archive holds: ours are stored as they are."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return sum(member.file_size for member in archive.infolist())
    except zipfile.BadZipFile as error:
        raise ValueError("the estimator is no archive of skops") from error


def _skops() -> Any:
    try:
        import skops.io
    except ImportError as error:
        raise ValueError("to store an estimator takes the package skops: install it") from error
    return skops.io
