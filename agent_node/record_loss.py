"""What a single record of this agent's has lost, for its owner: from public numbers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent_node.contributions import Contributions
from mpc_vote.privacy.contributions import BoundedRound, Neighbours, record_epsilon
from mpc_vote.privacy.ledger import Ledger, Spend
from mpc_vote.privacy.rounding import round_up


def bounded_rounds(spends: Sequence[Spend], bounds: Mapping[str, int]) -> list[BoundedRound]:
    """The rounds of a ledger, each with the bound that counters were kept for, if they were."""
    return [BoundedRound(one.mechanism, bounds.get(one.round_id)) for one in spends]


class RecordLoss:
    """Of all rounds that a ledger has, by the totals."""

    def __init__(self, ledger: Ledger, kept: Contributions, delta: float) -> None:
        self._ledger = ledger
        self._kept = kept
        self._delta = delta

    def epsilon(self, neighbours: Neighbours) -> float:
        """What a record that is added or removed, or replaced by another, has lost at most."""
        rounds = bounded_rounds(self._ledger.spends(), self._kept.rounds())
        return record_epsilon(rounds, self._delta, neighbours)

    def __str__(self) -> str:
        added, replaced = (round_up(self.epsilon(one)) for one in Neighbours)
        return (
            f"a single record has lost at most epsilon {added} (added or removed) or {replaced} "
            f"(replaced) in all rounds so far, at delta {self._delta:g}"
        )
