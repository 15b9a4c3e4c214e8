"""A voter is tried before its agent attends: what can't work is then said to its owner, at once."""

from __future__ import annotations

import numpy as np

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters import Voter, VoterOptions
from mpc_vote.learning.voters.questions import example

_ROWS = 2
_BITS = 4


def try_out(voter: Voter, data: Dataset | None, options: VoterOptions) -> None:
    """Asks for every kind of ballot once, about rows that are made of public things."""
    task = options.task
    if task is not None:
        rows, classes, tau = example(task.input), len(task.classes), task.vote.tau or 1
    elif data is not None:
        rows, classes, tau = np.zeros((_ROWS, *data.shape), data.x.dtype), data.classes, 1
    else:
        raise ValueError("without a task (--task) a voter takes the agent's data (--data)")
    for kind in voter.kinds:
        votes = np.asarray(voter.vote(rows, kind))
        if votes.ndim == 0 or len(votes) != len(rows):
            raise ValueError(f"{len(rows)} queries got votes of shape {votes.shape}")
        kind.encode(votes, classes=classes, fraction_bits=_BITS, k=voter.k, tau=tau)
