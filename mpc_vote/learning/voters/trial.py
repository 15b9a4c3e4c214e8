"""A voter is tried before its agent attends: its owner then learns at once what can't work."""

from __future__ import annotations

import numpy as np

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters import Voter, VoterOptions, classes_of
from mpc_vote.learning.voters.questions import example_rows

_BITS = 4


def try_out(voter: Voter, data: Dataset | None, options: VoterOptions) -> None:
    """Asks for every kind of ballot once, about rows that are made of public things."""
    rows, classes = example_rows(data, options), classes_of(data, options)
    for kind in voter.kinds:
        votes = np.asarray(voter.vote(rows, kind))
        if votes.ndim == 0 or len(votes) != len(rows):
            raise ValueError(f"{len(rows)} queries got votes of shape {votes.shape}")
        kind.encode(votes, classes=classes, fraction_bits=_BITS, k=voter.k, tau=classes)
