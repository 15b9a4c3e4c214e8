"""A round's spec: parsed, checked, and with everything that follows from it.

Each role that receives a spec parses it itself and refuses one that doesn't hold together, so
nobody relies on the coordinator having checked it. The digest of the bytes is what roles compare.
"""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass
from functools import cached_property

from mpc_vote import ballots, noise, ring, wire
from mpc_vote.argmax.engine import Engine, session_plan
from mpc_vote.argmax.engines import EngineName, make_engine, ring_bits
from mpc_vote.argmax.material import Plan, Run
from mpc_vote.ballots import BallotKind
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.identity import NAME_PATTERN
from mpc_vote.privacy.mechanisms import SkellamVote
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.verified.counting import MAX_NUMBERS, Count
from mpc_vote.verified.layout import TAIL, Layout

# Room for the longest roster, and for fields of a later version.
MAX_SPEC_BYTES = 1 << 20
MAX_QUERIES = 10_000
MAX_QUERY_BYTES = 256 << 20
# Of a round's explicit shares at all parties together, and of what a party holds of all rounds.
MAX_SHARE_BYTES = 4 << 30
MAX_CLASSES = 1_000
MAX_AGENTS = 4_096
MAX_PARTIES = 16
# An agent declines further ones, so a service does not open them.
MAX_ROUNDS_AT_ONCE = 8
MAX_K = 1 << 20
# Each level at least halves the classes.
MAX_LEVELS = 10
DIGEST_BYTES = 32
# A total outside the ring would give a wrong label: allowed with this probability in a whole round.
OVERFLOW_PROBABILITY = 2.0**-60

BALLOTS = {
    common_pb2.BALLOT_KIND_ONE_HOT: BallotKind.ONE_HOT,
    common_pb2.BALLOT_KIND_KNN_FREQUENCY: BallotKind.KNN_FREQUENCY,
    common_pb2.BALLOT_KIND_KNN_COUNT: BallotKind.KNN_COUNT,
    common_pb2.BALLOT_KIND_MULTI_LABEL: BallotKind.MULTI_LABEL,
}
BALLOT_CODES = {kind: code for code, kind in BALLOTS.items()}

ENGINES = {
    common_pb2.ENGINE_TABLE: EngineName.TABLE,
    common_pb2.ENGINE_STOCK_PAIRWISE: EngineName.PAIRWISE,
    common_pb2.ENGINE_STOCK_LOG_REDUCTION: EngineName.LOG_REDUCTION,
    common_pb2.ENGINE_STOCK_DOUBLE_LOG_REDUCTION: EngineName.DOUBLE_LOG_REDUCTION,
    common_pb2.ENGINE_STOCK_ACCELERATED_CASCADE: EngineName.ACCELERATED_CASCADE,
}
ENGINE_CODES = {name: code for code, name in ENGINES.items()}

VERIFIED_BALLOTS = (BallotKind.ONE_HOT, BallotKind.KNN_COUNT, BallotKind.MULTI_LABEL)
# Numbers that are dealt for a verified round: a minute of a dealer's time, in eight copies.
MAX_DEALT = 1 << 28

KNN_BALLOTS = (BallotKind.KNN_FREQUENCY, BallotKind.KNN_COUNT)


def default_fraction_bits(kind: BallotKind, ks: list[int]) -> int:
    """Four bits, and enough more for a frequency ballot to tell 1/k of a vote apart."""
    if kind is BallotKind.KNN_FREQUENCY:
        return 4 + math.ceil(math.log2(max(ks)))
    return 4


@dataclass(frozen=True)
class Spec:
    """A valid spec."""

    wire: bytes
    message: common_pb2.RoundSpec

    @classmethod
    def seal(cls, message: common_pb2.RoundSpec) -> Spec:
        """Fixes a spec's bytes; the coordinator's side of `parse`."""
        return cls.parse(message.SerializeToString(deterministic=True))

    @classmethod
    def parse(cls, wire: bytes) -> Spec:
        """Reads and checks a spec."""
        require(len(wire) <= MAX_SPEC_BYTES, f"it takes over {MAX_SPEC_BYTES} bytes")
        try:
            message = common_pb2.RoundSpec.FromString(wire)
        except Exception as error:
            raise VoteError(ErrorKind.SPEC_INVALID, why="it can't be read") from error
        spec = cls(wire, message)
        spec._check()
        return spec

    @cached_property
    def digest(self) -> bytes:
        """What roles compare."""
        return hashlib.sha256(self.wire).digest()

    @property
    def round_id(self) -> str:
        return self.message.round_id

    @cached_property
    def ballot(self) -> BallotKind:
        return BALLOTS[self.message.ballot]

    @cached_property
    def roster(self) -> dict[str, int]:
        """Agents in order, with their public k."""
        return {entry.agent: entry.k for entry in self.message.roster}

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(self.message.parties)

    @cached_property
    def engine(self) -> Engine:
        return make_engine(
            ENGINES[self.message.engine], self.message.ring_bits, self.message.groups
        )

    @property
    def query_shape(self) -> tuple[int, ...]:
        return tuple(self.message.query_shape)

    @property
    def cells(self) -> int:
        """Numbers in a whole ballot."""
        return self.message.queries * self.message.classes

    @property
    def multi_label(self) -> bool:
        return self.ballot is BallotKind.MULTI_LABEL

    @property
    def width(self) -> int:
        """Labels per query."""
        return self.message.classes if self.multi_label else 1

    @property
    def rows(self) -> int:
        """Rows of the secure argmax: one per label."""
        return self.message.queries * self.width

    @property
    def row_classes(self) -> int:
        """Classes in a row of the secure argmax: no and yes for an attribute."""
        return 2 if self.multi_label else self.message.classes

    @cached_property
    def agent_variance(self) -> float:
        """Variance of one agent's noise, in units^2."""
        m = self.message
        return noise.per_agent_variance(m.sigma, m.fraction_bits, m.quorum, m.collusion)

    @cached_property
    def mechanism(self) -> SkellamVote:
        """What the round costs the agent that it costs most."""
        return self._mechanism(list(self.roster.values()))

    def mechanism_for(self, agent: str) -> SkellamVote:
        """What the round costs one agent: others' k don't move what its own data moves."""
        return self._mechanism([self.roster[agent]])

    def _mechanism(self, ks: list[int]) -> SkellamVote:
        """The cost to agents with these k: only noise that no coalition of the assumed size knows
        counts."""
        m = self.message
        given = {"fraction_bits": m.fraction_bits, "ks": ks, "tau": m.tau or None}
        return SkellamVote(
            queries=m.queries,
            variance=self.agent_variance * (m.quorum - m.collusion),
            agent=ballots.agent_sensitivity(self.ballot, **given),  # type: ignore[arg-type]
            instance=ballots.instance_sensitivity(self.ballot, **given),  # type: ignore[arg-type]
        )

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """How the ballots of a verified round are laid out, by the roster."""
        m = self.message
        bound, unit = noise.tail_bound(self.agent_variance, TAIL), 1 << m.fraction_bits
        if self.ballot is BallotKind.KNN_COUNT:
            return tuple(Layout(m.classes, unit, bound, k) for k in self.roster.values())
        votes = m.tau if self.multi_label else 1
        return (Layout(m.classes, unit, bound, votes, self.multi_label),) * len(self.roster)

    @property
    def count(self) -> Count:
        """How the ballots of a verified round are counted."""
        return Count(self.layouts, self.message.queries, self.message.ring_bits)

    def layout(self, agent: str) -> Layout:
        """How an agent's verified ballot is laid out."""
        return self.layouts[self._places[agent]]

    def plan(self) -> Plan:
        """All material that the round takes."""
        engine = session_plan(self.engine, self.rows, self.row_classes, len(self.parties))
        if not self.message.verified:
            return engine
        return Plan((Run(tuple(self.count.plan()), 1), *engine.runs))

    def share_bytes(self, agent: str) -> int:
        """Size of an agent's explicit share."""
        if self.message.verified:
            return self.layout(agent).share_bytes(self.message.queries)
        return ring.packed_size(self.cells, self.message.ring_bits)

    def held_bytes(self, rank: int) -> int:
        """Size of all explicit shares that a party gets."""
        parties = len(self.parties)
        return sum(self.share_bytes(agent) for agent in list(self.roster)[rank::parties])

    @cached_property
    def total_bound(self) -> int:
        """No total exceeds this: of honest agents but with probability OVERFLOW_PROBABILITY, in a
        verified round whatever agents do."""
        m = self.message
        ks, tau = list(self.roster.values()), m.tau or None
        votes = len(self.roster) * ballots.max_entry(self.ballot, m.fraction_bits, ks, tau)
        if m.verified:
            return votes + len(self.roster) * self.layouts[0].bound
        variance = len(self.roster) * self.agent_variance
        return votes + noise.tail_bound(variance, OVERFLOW_PROBABILITY / max(1, self.cells))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {agent: place for place, agent in enumerate(self.roster)}

    def explicit_rank(self, agent: str) -> int:
        """The party that gets this agent's explicit share."""
        return self._places[agent] % len(self.parties)

    def seconds_left(self) -> float:
        """Until the deadline."""
        return self.message.deadline_unix_ms / 1000 - time.time()

    def _check(self) -> None:
        m = self.message
        require(0 < m.queries <= MAX_QUERIES, f"queries must be 1 to {MAX_QUERIES}")
        require(len(m.queries_digest) == DIGEST_BYTES, "the digest of the queries is missing")
        require(
            2 <= m.classes <= MAX_CLASSES or m.ballot == common_pb2.BALLOT_KIND_MULTI_LABEL,
            f"classes must be 2 to {MAX_CLASSES}",
        )
        require(1 <= m.classes <= MAX_CLASSES, f"classes must be 1 to {MAX_CLASSES}")
        shape = self.query_shape
        require(0 < len(shape) < wire.MAX_DIMENSIONS, "a query has too many or no dimensions")
        size = m.queries * math.prod(shape) * wire.dtype_of(m.query_dtype).itemsize
        require(0 < size <= MAX_QUERY_BYTES, f"the queries take over {MAX_QUERY_BYTES} bytes")
        require(m.ballot in BALLOTS, "the ballot kind is unknown")
        require(m.engine in ENGINES, "the engine is unknown")
        require(len(m.groups) <= MAX_LEVELS, "there are too many levels of groups")
        require(m.fraction_bits <= ballots.MAX_FRACTION_BITS, "too many fraction bits")
        require(0 < m.sigma < math.inf, "sigma must be positive")
        require(bool(NAME_PATTERN.fullmatch(m.round_id)), "the round id is malformed")
        for names, what, low, high in (
            ([entry.agent for entry in m.roster], "agents", 1, MAX_AGENTS),
            (list(m.parties), "parties", 2, MAX_PARTIES),
            ([m.dealer], "dealers", 1, 1),
        ):
            require(low <= len(names) <= high, f"there must be {low} to {high} {what}")
            require(len(set(names)) == len(names), f"{what} are named twice")
            require(all(NAME_PATTERN.fullmatch(n) for n in names), f"{what} are misnamed")
        require(
            m.collusion < m.quorum <= len(m.roster),
            "the quorum must lie above the collusion bound and within the roster",
        )
        if self.ballot in KNN_BALLOTS:
            require(all(0 < e.k <= MAX_K for e in m.roster), f"k must be 1 to {MAX_K}")
        if self.multi_label:
            require(0 < m.tau <= m.classes, "tau must be 1 to the number of attributes")
        try:
            need = self.total_bound
            fitting = ring_bits(ENGINES[m.engine], need)
            require(m.ring_bits == fitting, "the ring does not fit the engine and the totals")
            have = self.engine.largest_total(self.row_classes)
            self.engine.block_rows(self.row_classes)
        except ValueError as error:
            raise VoteError(ErrorKind.SPEC_INVALID, why=str(error)) from error
        require(self.agent_variance <= noise.MAX_STD**2, "the noise is too large: lower sigma")
        if m.verified:
            require(
                self.ballot in VERIFIED_BALLOTS,
                "frequency ballots can't be verified: use count ballots, or verified=False",
            )
            require(
                self.can_be_verified,
                "so many agents, neighbours, classes and queries are too many for a verified "
                "round: use verified=False, a smaller k, or fewer queries",
            )
        held = sum(self.held_bytes(rank) for rank in range(len(self.parties)))
        require(
            held <= MAX_SHARE_BYTES,
            f"the agents' shares take over {MAX_SHARE_BYTES} bytes: ask for fewer queries",
        )
        if need > have:
            raise VoteError(
                ErrorKind.RANGE_OVERFLOW, need=ring.bits_for(need), have=ring.bits_for(have)
            )

    @property
    def can_be_verified(self) -> bool:
        """Whether there is a way to verify such ballots, in such a number."""
        if self.ballot not in VERIFIED_BALLOTS:
            return False
        numbers = sum(layout.numbers for layout in self.layouts)
        return 8 * numbers <= MAX_NUMBERS and numbers * self.message.queries <= MAX_DEALT


def require(condition: bool, why: str) -> None:
    """Refuses a spec, saying why."""
    if not condition:
        raise VoteError(ErrorKind.SPEC_INVALID, why=why)
