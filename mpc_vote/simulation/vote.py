"""The vote without its network: the service's own ballots, noise, sharing, ring and secure argmax.

Of a verified round the noise is the parties' coins, as in the service; else it is the agents'.
Whoever runs a simulation sees all votes: it protects nobody's data. Its noise comes from a seed, so
that an experiment can be repeated; a service must never do that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mpc_vote.argmax.registry import TABLE
from mpc_vote.mpc import ring
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Preprocessing
from mpc_vote.mpc.prg import SeedStream, Words
from mpc_vote.mpc.sharing import Share, split
from mpc_vote.privacy.noise import ByteSource, SkellamSampler
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.voting import planning
from mpc_vote.voting.aggregation import Totals, share_ballot
from mpc_vote.voting.ballots import BallotKind, IntArray
from mpc_vote.voting.limits import DIGEST_BYTES
from mpc_vote.voting.spec import Spec


def simulated_spec(
    kind: BallotKind,
    queries: int,
    classes: int,
    roster: Mapping[str, int],
    sigma: float,
    *,
    quorum: int | None = None,
    collusion: int = 0,
    tau: int = 0,
    parties: int = 2,
    verified: bool = False,
) -> Spec:
    """The spec of a round as a coordinator would make it; the roster has each agent's public k.

    Without a quorum everybody is expected, and the noise of a round that is not verified is split
    among all.
    """
    message = planning.draft(
        kind,
        round_id="simulated",
        queries=queries,
        query_dtype=common_pb2.DTYPE_FLOAT32,
        query_shape=[1],
        classes=classes,
        tau=tau,
        sigma=sigma,
        roster=roster,
        quorum=len(roster) if quorum is None else quorum,
        collusion=collusion,
        parties=[f"party-{rank}" for rank in range(parties)],
        dealer="dealer",
        verified=verified,
    )
    return planning.complete(message, bytes(DIGEST_BYTES), TABLE, 0.0)


def upload_bytes(spec: Spec) -> int:
    """What an agent sends to all parties in a round, as shares; messages add a few bytes each."""
    agent = next(iter(spec.roster))
    empty = np.zeros((spec.message.queries, spec.message.classes), dtype=np.int64)
    return sum(share.upload_bytes for share in share_ballot(spec, agent, empty))


def seeded(seed: int, name: str) -> ByteSource:
    """An agent's or a party's bytes for its noise in a simulation, the same for the same seed and
    name."""
    return SeedStream(hashlib.sha256(f"{seed}/{name}".encode()).digest()).take


def vote(spec: Spec, ballots: Mapping[str, IntArray], seed: int) -> npt.NDArray[np.int64]:
    """The labels of a round in which these agents cast these ballots, (queries, width)."""
    cast = dict(ballots)
    if not spec.message.verified:
        sampler = SkellamSampler(spec.agent_variance)
        for agent, ballot in ballots.items():
            cast[agent] = ballot + sampler.sample(ballot.shape, seeded(seed, agent))
    shares = {agent: share_ballot(spec, agent, ballot) for agent, ballot in cast.items()}
    return _label(spec, shares, spec.rows, seed).reshape(spec.message.queries, spec.width)


def count(spec: Spec, noisy: Iterable[tuple[str, IntArray]]) -> npt.NDArray[np.int64]:
    """What the committee makes of ballots that hold their noise already: one label per row.

    The ballots may be those of several rounds with this spec, one after the other, but not of
    verified ones.
    """
    cells, parties = 0, len(spec.parties)
    shares: dict[str, list[Share]] = {}
    for agent, ballot in noisy:
        cells = ballot.size
        shares[agent] = split(ballot, parties, spec.explicit_rank(agent), spec.message.ring_bits)
    return _label(spec, shares, cells if spec.ballot.attributes else cells // spec.row_classes)


def totals(spec: Spec, ballots: Mapping[str, IntArray]) -> IntArray:
    """What the parties' shares of ballots without noise add up to, (queries, classes) in units.

    In a verified round all coins lie the same way, and what they are worth is taken off.
    """
    shares = {agent: share_ballot(spec, agent, ballot) for agent, ballot in ballots.items()}

    def party(channel: Channel, preprocessing: Preprocessing) -> Words:
        held = {agent: each[channel.rank] for agent, each in shares.items()}
        return Totals(spec, held, bytes).take(spec.rows, channel, preprocessing)

    added = np.sum(run_committee(len(spec.parties), party), axis=0, dtype=np.uint64)
    # A row for an attribute begins with half of the agents, for comparison.
    cells = added.reshape(spec.rows, -1)[:, 1:] if spec.ballot.attributes else added
    found = ring.signed(cells.reshape(-1), spec.message.ring_bits)
    if spec.message.verified:
        found += spec.coin_law.reach
    return found.reshape(-1, spec.message.classes)


def _label(
    spec: Spec, shares: Mapping[str, Sequence[Share]], rows: int, seed: int | None = None
) -> npt.NDArray[np.int64]:
    """A committee's work in one process; with a seed its coins are the same every time."""
    if len(shares) < spec.message.quorum:
        raise ValueError(f"{len(shares)} ballots are fewer than the quorum {spec.message.quorum}")

    def party(channel: Channel, preprocessing: Preprocessing) -> Words:
        own = {agent: held[channel.rank] for agent, held in shares.items()}
        coins = None if seed is None else seeded(seed, spec.parties[channel.rank])
        totals = Totals(spec, own, coins)
        step = spec.engine.block_rows(spec.row_classes)
        blocks = []
        for start in range(0, rows, step):
            block = totals.take(min(step, rows - start), channel, preprocessing)
            blocks.append(spec.engine.run(block, spec.row_classes, channel, preprocessing))
        return np.concatenate(blocks)

    total = np.sum(run_committee(len(spec.parties), party), axis=0, dtype=np.uint64)
    return spec.engine.label_code(spec.row_classes).labels(np.asarray(total)).astype(np.int64)
