"""Agents that lie in a verified round move no label beyond their own votes.

When agents shared their noise as bits, each within a bound, 5 of 200 agents at their bound chose
99.9 % of the labels, and one of 8 all of them. Now agents have no bits but those of their votes.
"""

from __future__ import annotations

import numpy as np
import pytest

from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Preprocessing
from mpc_vote.mpc.prg import Words
from mpc_vote.mpc.sharing import Share
from mpc_vote.simulation.vote import seeded, simulated_spec
from mpc_vote.verified.encoding import Bits, encode, split_bits
from mpc_vote.voting.aggregation import Totals
from mpc_vote.voting.ballots import ONE_HOT
from mpc_vote.voting.spec import Spec

CLASSES, QUERIES, PARTIES = 10, 400, 2
AGREED, WANTED = 0, 1


def totals_of(spec: Spec, shares: dict[str, list[Share]]) -> np.ndarray:
    """With the same coins every time."""

    def party(channel: Channel, preprocessing: Preprocessing) -> Words:
        own = {agent: held[channel.rank] for agent, held in shares.items()}
        coins = seeded(1, spec.parties[channel.rank])
        return Totals(spec, own, coins).take(QUERIES, channel, preprocessing)

    added = np.sum(run_committee(PARTIES, party), axis=0, dtype=np.uint64)
    bits = spec.message.ring_bits
    shift = np.int64(64 - bits)
    return (added.astype(np.int64) << shift >> shift).reshape(QUERIES, CLASSES)


def every_bit(spec: Spec, value: int) -> Bits:
    """All bits that an agent has, alike."""
    return np.full((QUERIES, spec.layouts[0].bits), value, np.uint8)


@pytest.mark.parametrize(("agents", "liars"), [(200, 5), (8, 1)])
def test_few_agents_choose_no_label_beyond_their_own_votes(agents: int, liars: int) -> None:
    """Sigma is 25, and six in ten of the others agree on another class. Whatever bits the liars
    send, no total moves by more than their number; and they hardly choose more labels than
    those who do not lie at all."""
    roster = {f"agent-{number}": 0 for number in range(agents)}
    spec = simulated_spec(ONE_HOT, QUERIES, CLASSES, roster, 25.0, verified=True)
    layout, rng = spec.layouts[0], np.random.default_rng(0)
    shares = {}
    for agent in roster:
        labels = np.where(rng.random(QUERIES) < 0.6, AGREED, rng.integers(1, CLASSES, QUERIES))
        shares[agent] = split_bits(encode(layout, spec.encode(agent, labels)), PARTIES, 0)
    honest = totals_of(spec, shares)
    lies = {
        "for the class that they want": encode(
            layout, spec.encode("agent-0", np.full(QUERIES, WANTED))
        ),
        "all ones": every_bit(spec, 1),
        "any bits": rng.integers(0, 2, (QUERIES, layout.bits), np.uint8),
    }
    for lie, bits in lies.items():
        told = {f"agent-{number}": split_bits(bits, PARTIES, 0) for number in range(liars)}
        moved = totals_of(spec, shares | told) - honest
        assert np.abs(moved).max() <= liars, lie
        assert np.abs(moved).sum(axis=1).max() <= 2 * liars, lie
        chosen = ((honest + moved).argmax(axis=1) == WANTED).mean()
        assert chosen <= (honest.argmax(axis=1) == WANTED).mean() + 0.05, lie
