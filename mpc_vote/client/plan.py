"""What a client asks for."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from mpc_vote.argmax.registry import ENGINES, EngineKind
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy.accountant import MIN_DELTA
from mpc_vote.proto.mpcvote.v1 import label_pb2
from mpc_vote.tasks import Task
from mpc_vote.voting.ballots import BALLOTS, BallotKind
from mpc_vote.voting.limits import MAX_CLASSES

_WHOLE = ("classes", "quorum", "collusion", "tau", "answer_seconds")
_REAL = ("sigma", "delta", "agreement")


@dataclass(frozen=True)
class Plan:
    """What is asked for; None means the service's default.

    Either `task` or `classes` is given: classes, ballot and tau follow from a task. Ballots and
    engines can be given by name, as in `Plan(classes=10, ballot="knn_count")`. `agreement` is the
    part of the votes on a query that is expected to name its right class: where noise would drown
    even their lead the request is refused, unspent. None: labels are asked for all the same.
    """

    classes: int | None = None
    ballot: BallotKind | str | None = None
    sigma: float | None = None
    quorum: int | None = None
    collusion: int | None = None
    tau: int | None = None
    engine: EngineKind | str | None = None
    delta: float | None = None
    answer_seconds: int | None = None
    request_id: str | None = None
    verified: bool | None = None
    task: Task | None = None
    agreement: float | None = 1.0

    def __post_init__(self) -> None:
        self._check_types()
        for name, registry in (("ballot", BALLOTS), ("engine", ENGINES)):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, registry.chosen(given))

    def _check_types(self) -> None:
        """In the words of whoever writes a script, before anything else fails on them."""
        if self.task is not None and not isinstance(self.task, Task):
            raise TypeError(
                f"plan.task must be a task, such as Task.load('task.toml'), not {self.task!r}"
            )
        kinds = dict.fromkeys(_WHOLE, Integral) | dict.fromkeys(_REAL, Real)
        for name, kind in kinds.items():
            given = getattr(self, name)
            if given is not None and not isinstance(given, kind):
                noun = "a whole number" if kind is Integral else "a number"
                raise TypeError(f"plan.{name} must be {noun}, not {given!r}")

    def message(self) -> label_pb2.LabelPlan:
        """The plan on the wire, where zero means the default: a zero that is meant is refused."""
        if self.sigma is not None and not self.sigma > 0:
            raise VoteError(ErrorKind.SIGMA_RANGE, field="plan.sigma", got=self.sigma)
        if self.delta is not None and not MIN_DELTA <= self.delta < 1:
            raise VoteError(
                ErrorKind.DELTA_RANGE, field="plan.delta", got=self.delta, low=MIN_DELTA
            )
        if self.agreement is not None and not 0 <= self.agreement <= 1:
            raise VoteError(ErrorKind.AGREEMENT_RANGE, field="plan.agreement", got=self.agreement)
        given = {name: value for name, value in vars(self).items() if value is not None}
        if self.task is not None:
            given |= self._of_task(self.task)
        classes = given.get("classes", 0)
        if not 1 <= classes <= MAX_CLASSES:
            raise VoteError(
                ErrorKind.CLASSES_RANGE,
                field="plan.classes",
                got=classes,
                low=1,
                high=MAX_CLASSES,
            )
        for name in ("ballot", "engine"):
            if name in given:
                given[name] = given[name].code
        return label_pb2.LabelPlan(**given)

    def _of_task(self, task: Task) -> dict[str, Any]:
        """What follows from a task; what the plan says otherwise is refused."""
        follows = {"classes": len(task.classes), "ballot": task.vote.ballot, "tau": task.vote.tau}
        for name, want in follows.items():
            got = getattr(self, name)
            if got is not None and got != want:
                raise VoteError(
                    ErrorKind.TASK_CONTRADICTED,
                    field=f"plan.{name}",
                    got=getattr(got, "name", got),
                    task=task.name,
                    want=getattr(want, "name", want),
                )
        return {**follows, "task": task.name, "task_digest": task.digest}
