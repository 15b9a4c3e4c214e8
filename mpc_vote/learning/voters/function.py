"""Votes of a plain function: from inputs to a label or scores for each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters import VoterOptions
from mpc_vote.learning.voters.answers import PredictionVoter
from mpc_vote.learning.voters.questions import Question


def is_function(made: Any) -> bool:
    """Whether something takes inputs alone, and so is no factory of voters, which takes data and
    options."""
    try:
        parameters = inspect.signature(made).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [
        one
        for one in parameters
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    return len(needed) == 1


def make(
    function: Callable[[Any], Any], data: Dataset | None, options: VoterOptions
) -> PredictionVoter:
    """The voter of a function. See `PredictionVoter` for what is accounted."""
    return PredictionVoter(Question.of(data, options), function)
