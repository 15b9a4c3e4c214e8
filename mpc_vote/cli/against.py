"""Whom an epsilon holds against, in a sentence: the same wherever one is shown."""

from __future__ import annotations

from mpc_vote.privacy.charging import Against
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.privacy.rounding import round_up

AGAINST = {
    Against.TOTALS: "against whoever may see noisy totals, as malicious parties may",
    Against.LABELS: "against those who see labels only: clients, the server, semi-honest parties",
}

DEALER = "In verified rounds none holds against the dealer together with a party."
"""What no figure covers."""

EXPLAINED = (
    "Epsilon holds against whoever may see noisy totals, as malicious parties may; by labels, "
    f"against clients, the server and semi-honest parties. {DEALER}"
)
"""Of a table that has both."""


def by_labels(cost: object, of: str = "") -> str:
    """What is lost to those who see labels only, of whatever has such figures; with `total_` of all
    rounds."""
    agent, instance = (
        round_up(getattr(cost, f"{of}labels_epsilon_{level.value}")) for level in Level
    )
    return f"{agent} agent level, {instance} instance level"
