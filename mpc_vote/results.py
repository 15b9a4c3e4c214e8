"""What a client is given, as plain objects: what a round cost, and what a trained model is."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from mpc_vote.proto.mpcvote.v1 import common_pb2, model_pb2

COMMONEST = "agreement_commonest"
"""The metric of every model that tells what always saying the commonest label would have."""


@dataclass(frozen=True)
class Cost:
    """Of a round: epsilon of this round alone, and of all that the service ever charged; then what
    the secure argmax took, and the largest upload of one agent.

    Epsilons hold against whoever may see noisy totals, as malicious parties may; those of labels
    against clients, the server and parties that follow the protocol.
    """

    epsilon_agent: float
    epsilon_instance: float
    delta: float
    total_epsilon_agent: float
    total_epsilon_instance: float
    mpc_rounds: int
    mpc_bytes_per_party: int
    mpc_seconds: float
    mpc_preprocessing_seconds: float
    mpc_sum_seconds: float
    mpc_round_trip_seconds: float
    dealer_bytes: int
    upload_bytes_per_agent: int
    seconds: float
    labels_epsilon_agent: float
    labels_epsilon_instance: float
    total_labels_epsilon_agent: float
    total_labels_epsilon_instance: float

    @classmethod
    def from_message(cls, message: common_pb2.Cost) -> Self:
        """From the wire."""
        return cls(**{field.name: getattr(message, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class Model:
    """A version of the global model: what it learnt from, what that had cost, and who trained it.

    Its epsilons are of two kinds, as those of `Cost`.

    `sha256` is of its file, `task` empty for rounds without one.
    """

    version: int
    task: str
    round_ids: tuple[str, ...]
    labels: int
    unlabelled: int
    classes: int
    student: str
    epsilon_agent: float
    epsilon_instance: float
    delta: float
    metrics: Mapping[str, float]
    trained: dt.datetime
    sha256: bytes
    labels_epsilon_agent: float
    labels_epsilon_instance: float

    @property
    def says_little(self) -> bool:
        """Whether always saying the commonest label would have done as well, on labels that were
        held out from students where some were."""
        known = {name: value for name, value in self.metrics.items() if name != COMMONEST}
        held_out = [value for name, value in known.items() if name.startswith("agreement_")]
        reached = max(held_out, default=known.get("agreement"))
        return reached is not None and reached <= self.metrics.get(COMMONEST, 0.0)

    @classmethod
    def from_message(cls, message: model_pb2.Model) -> Self:
        """From the wire; a missing time becomes the first one."""
        special: dict[str, Any] = {
            "round_ids": tuple(message.round_ids),
            "metrics": dict(message.metrics),
            "trained": _time(message.trained_unix_ms),
        }
        plain = {
            field.name: getattr(message, field.name)
            for field in fields(cls)
            if field.name not in special
        }
        return cls(**plain, **special)


def _time(milliseconds: int) -> dt.datetime:
    start = dt.datetime.fromtimestamp(0, dt.UTC)
    try:
        return start + dt.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return start
