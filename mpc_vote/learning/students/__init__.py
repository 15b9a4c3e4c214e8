"""How the server learns from released labels, and how another way is added.

A student is trained by an object with `train` and `load`, such as a class that has both as class
methods. Other packages add theirs under the entry point `mpc_vote.students`; a coordinator takes
one by `--student NAME`, or by `--student module:name`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from mpc_vote import plugins
from mpc_vote.data.dataset import FloatArray, LabelArray
from mpc_vote.learning.students.classifier import Classifier, GlobalModel

if TYPE_CHECKING:
    from mpc_vote.learning.students.model_file import Stored
    from mpc_vote.learning.students.packed import PackedModel

GROUP = "mpc_vote.students"
OWN = {
    "chooser": "mpc_vote.learning.students.chooser:Chooser",
    "linear": "mpc_vote.learning.students.linear:Linear",
    "network": "mpc_vote.learning.students.supervised:Supervised",
    "propagation": "mpc_vote.learning.students.propagation:Propagation",
    "prototypes": "mpc_vote.learning.students.prototypes:Prototypes",
}
DEFAULT = "chooser"
# What a file may say of how it is read.
_READERS = {
    "estimator": "mpc_vote.learning.students.estimator:EstimatorModel",
    "linear": "mpc_vote.learning.students.linear:LinearModel",
    "mixture": "mpc_vote.learning.students.mixture:Mixture",
    "network": "mpc_vote.learning.students.supervised:Student",
    "prototypes": "mpc_vote.learning.students.prototypes:PrototypeStudent",
}


@dataclass(frozen=True)
class StudentOptions:
    """What is known beside the points: `features` names the feature map that the client asks for,
    empty for none; `on_progress` takes (steps done, steps in all, loss)."""

    classes: int
    seed: int = 0
    features: str = ""
    on_progress: Callable[[int, int, float], None] | None = None


class StudentFactory(Protocol):
    """Trains global models, and reads them again. A `ValueError` says why it can't: clients are
    told that sentence, and of any other error its type alone."""

    def train(
        self, x: FloatArray, y: LabelArray, unlabelled: FloatArray | None, options: StudentOptions
    ) -> GlobalModel:
        """A model from public points `x`, (n, ...), with released labels `y`, (n,), some of them
        wrong, and from further points like them, where there are any."""
        ...

    def load(self, path: Path) -> Classifier:
        """A model from the file that its `save` wrote."""
        ...


def check_student(name: str) -> str:
    """A name that stands for a student; nothing is loaded."""
    plugins.place(GROUP, OWN, name)
    return name


def find_student(name: str) -> StudentFactory:
    """What trains the student of this name; its code is loaded."""
    factory: StudentFactory = plugins.load(GROUP, OWN, name)
    for method in ("train", "load"):
        if not callable(getattr(factory, method, None)):
            raise plugins.PluginError(f"{name!r} is no student: it has no {method}()")
    return factory


def load_model(path: str | Path, student: str = "") -> Classifier:
    """A trained model from its file, such as a client has fetched.

    Models of this project say in their file how they are read. A plug-in's file may be of any
    format: name the `student` that made it, as its coordinator was told. A file is never asked
    which plug-in to load, as that would run code of its choice.
    """
    if student:
        return find_student(student).load(Path(path))
    from mpc_vote.learning.students import model_file

    return unpack(model_file.read(Path(path)))


def unpack(stored: Stored) -> PackedModel:
    """The model in a file that was read."""
    from mpc_vote.learning.students import model_file

    # Files of version 0.2 are networks, and don't say so.
    reader = stored.own.get(model_file.READER, "network")
    if reader not in _READERS:
        raise ValueError(f"{stored.path}: a model of {reader!r}: pass the student that made it")
    model: PackedModel = plugins.load("", _READERS, reader).unpack(stored)
    return model


def check_model(model: object, classes: int) -> GlobalModel:
    """What a student was trained to, if it can be used at all."""
    if not isinstance(model, GlobalModel):
        raise ValueError(f"train() gave no GlobalModel but {type(model).__name__}")
    if model.classes != classes:
        raise ValueError(f"the model has {model.classes} classes instead of {classes}")
    return model


def predict(model: Classifier, x: FloatArray, classes: int) -> LabelArray:
    """The likeliest class of each point, of scores that can be compared."""
    scores: npt.NDArray[Any] = np.asarray(model.scores(x))
    if scores.shape != (len(x), classes):
        raise ValueError(f"scores() gave shape {scores.shape} instead of {(len(x), classes)}")
    if scores.dtype.kind not in "fiu":
        raise ValueError(f"scores() gave {scores.dtype} instead of numbers")
    if not np.isfinite(scores).all():
        raise ValueError("scores() gave NaN or infinity")
    return np.asarray(np.argmax(scores, axis=1), dtype=np.int64)
