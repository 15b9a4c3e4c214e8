"""A voter is tried before its agent attends: its owner then learns at once what can't work."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters import Voter, VoterOptions, classes_of
from mpc_vote.learning.voters.questions import example_rows, odd_rows

_BITS = 4


def try_out(voter: Voter, data: Dataset | None, options: VoterOptions) -> None:
    """Asks for every kind of ballot, about rows that are made of public things: usual ones, those
    that lack what a client's rows may lack, and both together."""
    rows, classes = example_rows(data, options), classes_of(data, options)
    _ask(voter, rows, classes)
    odd = None if options.task is None else odd_rows(options.task)
    if odd is None:
        return
    lacking, what = odd
    try:
        _ask(voter, lacking, classes)
        _ask(voter, np.concatenate([rows, lacking]), classes)
    except Exception as error:  # of whatever the voter is made of
        raise ValueError(
            f"it votes, but not where {what}, and any query may be so: let it fill in what is "
            f"missing, as an imputer does, or abstain ({type(error).__name__}: {error})"
        ) from error


def _ask(voter: Voter, rows: npt.NDArray[Any], classes: int) -> None:
    for kind in voter.kinds:
        votes = np.asarray(voter.vote(rows, kind))
        if votes.ndim == 0 or len(votes) != len(rows):
            raise ValueError(f"{len(rows)} queries got votes of shape {votes.shape}")
        kind.encode(votes, classes=classes, fraction_bits=_BITS, k=voter.k, tau=classes)
