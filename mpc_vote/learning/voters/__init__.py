"""How agents vote, and how another voter is added.

A voter says what an agent makes of public queries; encoding, noise and shares are not its business.
One is made by a function of an agent's data and options. Other packages add theirs under the entry
point `mpc_vote.voters`; an agent takes one by `--voter NAME`, or by `--voter module:function`. A
function of inputs alone, that gives a label or scores for each, will do as well.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from mpc_vote import plugins
from mpc_vote.data.dataset import Dataset
from mpc_vote.tasks import Task
from mpc_vote.voting.ballots import BALLOTS, BallotKind

GROUP = "mpc_vote.voters"
NEIGHBOURS = "knn"
_TRAINED_HERE = {
    NEIGHBOURS: "mpc_vote.learning.voters.knn:make",
    "network": "mpc_vote.learning.voters.local_model:make",
}
OWN = {
    **_TRAINED_HERE,
    "sklearn": "mpc_vote.learning.voters.sklearn_model:make",
    "onnx": "mpc_vote.learning.voters.onnx_model:make",
    "torch": "mpc_vote.learning.voters.torch_model:make",
    "http": "mpc_vote.learning.voters.http_model:make",
}


class ModelInputs(enum.StrEnum):
    """What a model of one's own takes."""

    FEATURES = "features"
    """The vectors that the task's feature map makes."""

    RAW = "raw"
    """The task's inputs as they are: vectors, pixels, named columns or texts."""


class Voter(Protocol):
    """Says what an agent makes of public queries.

    What it says of a query must depend on that query, on public things, and on the agent's own data
    only. For kNN ballots it must count at most `k` records, each by a distance that does not depend
    on any other record: instance-level privacy rests on it.
    """

    @property
    def kinds(self) -> tuple[BallotKind, ...]:
        """The ballots that it can cast, the preferred first."""
        ...

    @property
    def k(self) -> int:
        """The public number of neighbours, for ballots that have one; else 0."""
        ...

    def vote(self, queries: npt.NDArray[Any], kind: BallotKind) -> npt.NDArray[Any]:
        """Votes as the kind encodes them: labels (queries,) for `one_hot`, counts (queries,
        classes) for the kNN kinds, scores (queries, attributes) for `multi_label`."""
        ...


@dataclass(frozen=True)
class VoterOptions:
    """What an agent's settings say about its voter."""

    k: int = 10
    features: str = "raw"
    reach: float | None = None
    seed: int = 0
    task: Task | None = None
    """Whose inputs are voted on; `k`, `features` and `reach` are then the task's."""

    weights: Path | None = None
    """Where this machine has the weights of the task's feature map, if not in their usual place."""

    model: str = ""
    """The file or the URL of a model that is not trained here."""

    inputs: ModelInputs = ModelInputs.FEATURES
    """What of a task's inputs such a model takes."""

    trusted: tuple[str, ...] = ()
    """Types that a scikit-learn model may hold beside those that skops takes for safe."""

    ca: Path | None = None
    """The authority of a model's server, if it is none that the system knows."""

    plain_http: bool = False
    """Whether votes may come over a network without TLS."""

    public: npt.NDArray[Any] | None = None
    """Unlabelled public points like those that may be asked."""

    start_seconds: float = 600.0
    """How long a voter that runs in a process of its own may take to load."""


def classes_of(data: Dataset | None, options: VoterOptions) -> int:
    """How many classes are voted on, by the task or by the agent's data."""
    if options.task is not None:
        return len(options.task.classes)
    if data is None:
        raise ValueError("without a task (--task) a voter takes the agent's data (--data)")
    return data.classes


class VoterFactory(Protocol):
    """Makes a voter of an agent's data, if it has any; a `ValueError` says why it can't."""

    def __call__(self, data: Dataset | None, options: VoterOptions) -> Voter:
        """A voter for this agent."""
        ...


def check_voter(name: str) -> str:
    """A name that stands for a voter; nothing is loaded."""
    plugins.place(GROUP, OWN, name)
    return name


def needs_data(name: str) -> bool:
    """Whether there is no such voter without private records."""
    return name in _TRAINED_HERE


def is_foreign(name: str) -> bool:
    """Whether a voter is made of the owner's code or model, which may do anything: it belongs into
    a process of its own (`isolated`)."""
    return name not in _TRAINED_HERE


def make_voter(name: str, data: Dataset | None, options: VoterOptions) -> Voter:
    """The voter of this name for an agent's data, in this process; it was tried once."""
    from mpc_vote.learning.voters import function
    from mpc_vote.learning.voters.trial import try_named

    loaded: Any = plugins.load(GROUP, OWN, name)
    try:
        if function.is_function(loaded):
            voter: Voter = function.make(loaded, data, options)
        else:
            voter = loaded(data, options)
        if not voter.kinds or not all(kind in BALLOTS for kind in voter.kinds):
            raise ValueError(f"the voter {name} names no kinds of ballots but {voter.kinds!r}")
        try_named(name, voter, data, options)
        return voter
    except (ValueError, OSError, ImportError):
        raise
    except Exception as error:
        raise ValueError(f"the voter {name} failed: {type(error).__name__}: {error}") from error
