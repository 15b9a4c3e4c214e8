"""How agents come to their votes, and how another way is added.

A voter says what an agent makes of public queries; encoding, noise and shares are not its business.
One is made by a function of an agent's data and options. Other packages add theirs under the entry
point `mpc_vote.voters`; an agent takes one by `--voter NAME`, or by `--voter module:function`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from mpc_vote import plugins
from mpc_vote.data.dataset import Dataset
from mpc_vote.voting.ballots import BALLOTS, BallotKind

GROUP = "mpc_vote.voters"
OWN = {
    "knn": "mpc_vote.learning.voters.knn:make",
    "network": "mpc_vote.learning.voters.local_model:make",
}


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


class VoterFactory(Protocol):
    """Makes a voter of an agent's data; a `ValueError` says why it can't."""

    def __call__(self, data: Dataset, options: VoterOptions) -> Voter:
        """A voter for this agent."""
        ...


def check_voter(name: str) -> str:
    """A name that stands for a voter; nothing is loaded."""
    plugins.place(GROUP, OWN, name)
    return name


def make_voter(name: str, data: Dataset, options: VoterOptions) -> Voter:
    """The voter of this name for an agent's data."""
    factory: VoterFactory = plugins.load(GROUP, OWN, name)
    try:
        voter = factory(data, options)
    except (ValueError, OSError, ImportError):
        raise
    except Exception as error:
        raise ValueError(f"the voter {name} failed: {type(error).__name__}: {error}") from error
    strange = [kind for kind in voter.kinds if kind not in BALLOTS]
    if strange or not voter.kinds:
        raise ValueError(f"the voter {name} names no kinds of ballots but {voter.kinds!r}")
    return voter
