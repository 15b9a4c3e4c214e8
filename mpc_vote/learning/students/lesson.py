"""What a student learns from: public points, and the labels that the vote released for some.

With labels held out it is another lesson about the same points, so that what follows from the
points alone is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import FloatArray, LabelArray, check_labels, check_points
from mpc_vote.learning.features.maps import FeatureMap, feature_map, raw
from mpc_vote.learning.nets.networks import Architecture, Progress
from mpc_vote.learning.students import StudentOptions

Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

_CONSTANT, _UNLIKE = 1e-9, 20.0


def mapped(features: str) -> FeatureMap:
    """How points become feature vectors: the one place where students ask for a feature map."""
    return feature_map(features) if features else raw


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether points of this shape are images that a convolutional network can learn from."""
    return Architecture.for_shape(shape, 2).kind == "cnn"


@dataclass(frozen=True, eq=False)
class Sight:
    """How a student sees points: through a feature map, then shifted and scaled. Models keep it."""

    features: str
    centre: Doubles
    scale: Doubles

    @classmethod
    def of(cls, x: FloatArray, features: str) -> Sight:
        """As points like these public ones are best seen.

        Columns without a feature map may have unlike units: where some are spread so much more than
        others that nothing else would count, each gets a scale of its own. Pixels and what a
        feature map gives are on one scale already.
        """
        vectors = mapped(features)(x)
        width = vectors.shape[1]
        spread = vectors.std(axis=0, dtype=np.float64)
        some = spread[spread > _CONSTANT]
        if features or is_image(x.shape[1:]) or not len(some):
            return cls(features, np.zeros(width), np.ones(width))
        if some.max() < _UNLIKE * np.quantile(some, 0.25, method="lower"):
            return cls(features, np.zeros(width), np.ones(width))
        centre = vectors.mean(axis=0, dtype=np.float64)
        return cls(features, centre, np.where(spread > _CONSTANT, spread, 1.0))

    def __call__(self, x: FloatArray) -> FloatArray:
        """Points (n, ...) as vectors (n, d)."""
        check_points(x)
        vectors = mapped(self.features)(x)
        if vectors.shape[1] != len(self.centre):
            raise ValueError(
                f"points of shape {x.shape[1:]} have {vectors.shape[1]} features, the model takes "
                f"{len(self.centre)}"
            )
        return np.asarray((vectors - self.centre) / self.scale, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class PublicPoints:
    """All public points, asked about or not; `features` names the map that they are seen in."""

    x: FloatArray
    features: str = ""

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one point."""
        return tuple(self.x.shape[1:])

    @property
    def images(self) -> bool:
        """Whether they are images, which networks learn as they are."""
        return is_image(self.shape)

    @property
    def input_features(self) -> str:
        """The feature map of what networks learn from: none for images, which they see as they
        are."""
        return "" if self.images else self.features

    @cached_property
    def inputs(self) -> FloatArray:
        """What networks learn from; they find its scale themselves."""
        return mapped(self.features)(self.x) if self.input_features else self.x

    @cached_property
    def see(self) -> Sight:
        """How students see points."""
        return Sight.of(self.x, self.features)

    @cached_property
    def vectors(self) -> FloatArray:
        """The points as students see them, (n, d)."""
        return self.see(self.x)


@dataclass(frozen=True, eq=False)
class Lesson:
    """Public points, of which the rows `asked` have released labels, some of them wrong."""

    public: PublicPoints
    asked: LabelArray
    labels: LabelArray
    classes: int
    seed: int = 0
    on_progress: Progress | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_asked(self.public.x, self.asked, self.labels, self.classes)

    @classmethod
    def of(
        cls, x: FloatArray, y: LabelArray, unlabelled: FloatArray | None, options: StudentOptions
    ) -> Lesson:
        """From what a `StudentFactory` is given."""
        if len(x) != len(y):
            raise ValueError(f"there are {len(x)} points but {len(y)} labels")
        points = x if unlabelled is None else np.concatenate([x, unlabelled])
        if len(points) < 2:
            raise ValueError(f"training needs at least two points, got {len(points)}")
        public = PublicPoints(points, options.features)
        asked = np.arange(len(y), dtype=np.int64)
        return cls(public, asked, y, options.classes, options.seed, options.on_progress)

    @property
    def counts(self) -> Doubles:
        """How many labels each class has."""
        return np.bincount(self.labels, minlength=self.classes).astype(np.float64)

    @property
    def further(self) -> int:
        """How many points have no label."""
        return len(self.public) - len(self.asked)

    def tell(self, step: int, steps: int, loss: float) -> None:
        """Report progress to whoever waits."""
        if self.on_progress is not None:
            self.on_progress(step, steps, loss)

    def only(self, places: Places) -> Lesson:
        """The same points with these of the labels, for a try-out."""
        return replace(self, asked=self.asked[places], labels=self.labels[places], on_progress=None)


def check_asked(x: FloatArray, asked: LabelArray, labels: LabelArray, classes: int) -> None:
    """Refuse `asked` rows of `x` that are not distinct, or lack a label each."""
    check_points(x)
    check_labels(labels, classes)
    if asked.dtype != np.int64 or asked.shape != labels.shape or len(asked) == 0:
        raise ValueError(
            f"each asked row (int64) needs its label, got {asked.dtype} {asked.shape} "
            f"and {labels.shape}"
        )
    if asked.min() < 0 or asked.max() >= len(x) or len(np.unique(asked)) < len(asked):
        raise ValueError(f"asked rows must be distinct and in 0..{len(x) - 1}")


def class_shares(counts: Doubles) -> Doubles:
    """The likely shares of classes of which so many labels were seen; a class without one has none.

    Counts of few labels scatter by chance alone. So the more they look like a draw from equal
    shares, by chi-square, the more they are drawn together (as by James and Stein); shares that are
    clearly unequal stay as they are.
    """
    present = counts > 0
    kinds, total = int(present.sum()), float(counts.sum())
    shares, equal = counts / total, present / kinds
    unlike = total * kinds * float(((shares - equal) ** 2).sum())
    kept = max(0.0, 1 - (kinds - 1) / unlike) if unlike > 0 else 0.0
    return np.asarray(kept * shares + (1 - kept) * equal)
