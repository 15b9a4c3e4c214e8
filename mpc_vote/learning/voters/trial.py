"""A voter is tried before its agent attends: its owner then learns at once what can't work."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters import ModelInputs, Voter, VoterOptions, classes_of, is_foreign
from mpc_vote.learning.voters.questions import EXAMPLES, example_rows, odd_rows

_BITS = 4
_RAW = {
    "table": "the columns by name",
    "text": "the texts",
    "image": "the pictures as bytes",
    "vector": "the vectors",
}


def try_named(name: str, voter: Voter, data: Dataset | None, options: VoterOptions) -> None:
    """As `try_out`; a `ValueError` says what went wrong, with what, and what it was given."""
    try:
        try_out(voter, data, options)
    except (OSError, ImportError):
        raise
    except Exception as error:  # of whatever the voter is made of
        what = f"{name} with the model {options.model}" if options.model else name
        why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"the voter {what} failed on {EXAMPLES} example rows: {why}{_seen(name, options)}"
        ) from error


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
    except Exception as error:
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


def _seen(name: str, options: VoterOptions) -> str:
    """What a model of the owner's was given, and how it is given the other thing."""
    if options.task is None or not is_foreign(name):
        return ""
    raw = _RAW[options.task.input.kind]
    if options.inputs is ModelInputs.RAW:
        return f". It was given {raw}; with --inputs features it is given the task's features"
    return f". It was given the task's features, an array; with --inputs raw it is given {raw}"
