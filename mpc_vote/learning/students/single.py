"""What all single students have in common: they learn from a lesson, and can be tried on labels
that are held out."""

from __future__ import annotations

from abc import ABC, abstractmethod

from mpc_vote.data.dataset import FloatArray, LabelArray
from mpc_vote.learning.students import StudentOptions
from mpc_vote.learning.students.lesson import Doubles, Lesson, Places
from mpc_vote.learning.students.packed import PackedModel


class SingleStudent(ABC):
    """One way to learn from a lesson. What there is to tune is tuned once, with all labels."""

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson

    @abstractmethod
    def guess(self, part: Lesson, rows: Places) -> Doubles:
        """Scores of these public points, (rows, classes), from a part of the labels: what a model
        of them would say, or near to it where that is much cheaper."""

    @abstractmethod
    def learn(self) -> PackedModel:
        """The model of all labels."""

    @classmethod
    def train(
        cls, x: FloatArray, y: LabelArray, unlabelled: FloatArray | None, options: StudentOptions
    ) -> PackedModel:
        """See `StudentFactory`."""
        return cls(Lesson.of(x, y, unlabelled, options)).learn()
