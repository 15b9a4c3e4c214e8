"""What a request that failed has cost: each error of one says so, and here alone it is decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from google.protobuf.message import Message

from mpc_vote.errors import VoteError
from mpc_vote.privacy.charging import charged_epsilon
from mpc_vote.privacy.mechanisms import Level, Mechanism
from mpc_vote.privacy.rounding import round_up

_Message = TypeVar("_Message", bound=Message)


def with_figures(message: _Message, *figures: Mapping[str, float]) -> _Message:
    """The message with epsilons, each in the field of its name."""
    for name, value in (one for some in figures for one in some.items()):
        setattr(message, name, value)
    return message


def tell_free(error: VoteError) -> None:
    """Nothing was charged."""
    error.add("Nothing was spent.")


def tell_charged(error: VoteError, mechanism: Mechanism, delta: float) -> None:
    """The ledger was charged, or may have been, and nothing is refunded.

    A client that is told to ask again does so by itself: only where nothing was spent, whatever a
    party says.
    """
    error.retry_after = None
    agent, instance = (
        round_up(charged_epsilon([mechanism], level, delta))
        for level in (Level.AGENT, Level.INSTANCE)
    )
    error.add(
        f"The round was charged, and stays charged: epsilon {agent} at agent level, {instance} at "
        f"instance level (delta {delta:g}), against whoever may see noisy totals."
    )
