"""A round's spec: parsed, checked, and with everything that follows from it.

Each role that receives a spec parses it itself and refuses one that doesn't hold together, so
nobody relies on the coordinator having checked it. The digest of the bytes is what roles compare.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy.typing as npt

from mpc_vote.argmax.engine import Engine, session_plan
from mpc_vote.argmax.registry import ENGINES, EngineKind
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc import ring
from mpc_vote.mpc.preprocessing import PreprocessingPlan, Run
from mpc_vote.pki.identity import NAME_PATTERN
from mpc_vote.privacy import coins, noise
from mpc_vote.privacy.coins import CoinLaw
from mpc_vote.privacy.mechanisms import CoinVote, SkellamVote
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.transport import tensors
from mpc_vote.verified.bit_conversion import MAX_NUMBERS
from mpc_vote.verified.encoding import Layout
from mpc_vote.verified.summation import Summation
from mpc_vote.voting.ballots import BALLOTS, BallotKind, IntArray
from mpc_vote.voting.ballots.kind import MAX_FRACTION_BITS
from mpc_vote.voting.charge import charge, committee_charge
from mpc_vote.voting.limits import (
    DIGEST_BYTES,
    MAX_AGENTS,
    MAX_CLASSES,
    MAX_K,
    MAX_LEVELS,
    MAX_PARTIES,
    MAX_QUERIES,
    MAX_QUERY_BYTES,
    MAX_SHARE_BYTES,
    MAX_SPEC_BYTES,
    MAX_VERIFIED_NUMBERS,
    OVERFLOW_PROBABILITY,
)

# One for each round that a process may have to do with at a time; of a megabyte at most.
_SPECS_KEPT = 16
_NAMES = re.compile(f"(?:{NAME_PATTERN.pattern}\n)*")


@dataclass(frozen=True)
class Spec:
    """A valid spec."""

    wire: bytes
    message: common_pb2.RoundSpec

    @classmethod
    def seal(cls, message: common_pb2.RoundSpec) -> Spec:
        """Fixes a spec's bytes; the coordinator's side of `parse`."""
        return cls.parse(message.SerializeToString(deterministic=True))

    @staticmethod
    def parse(wire: bytes) -> Spec:
        """Reads and checks a spec; the same bytes once, however many of a process are told."""
        require(len(wire) <= MAX_SPEC_BYTES, f"it takes over {MAX_SPEC_BYTES} bytes")
        return _parsed(wire)

    @cached_property
    def digest(self) -> bytes:
        """What roles compare."""
        return hashlib.sha256(self.wire).digest()

    @property
    def round_id(self) -> str:
        return self.message.round_id

    @cached_property
    def ballot(self) -> BallotKind:
        kind = BALLOTS.by_code(self.message.ballot)
        assert kind is not None, "checked where it is parsed"
        return kind

    @cached_property
    def roster(self) -> dict[str, int]:
        """Agents in order, with their public k."""
        return {entry.agent: entry.k for entry in self.message.roster}

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(self.message.parties)

    @cached_property
    def engine(self) -> Engine:
        m = self.message
        return self.engine_kind.make(m.ring_bits, m.groups, m.two_rounds)

    @property
    def engine_kind(self) -> EngineKind:
        """How its engine is made."""
        kind = ENGINES.by_code(self.message.engine)
        assert kind is not None, "checked where it is parsed"
        return kind

    @property
    def task(self) -> str:
        """The name of the round's task; empty if it has none."""
        return self.message.task

    @property
    def note(self) -> str:
        """What a ledger notes beside the spend."""
        told = f"{self.ballot.name}, sigma {self.message.sigma:g}"
        return f"task {self.task}, {told}" if self.task else told

    @property
    def query_shape(self) -> tuple[int, ...]:
        return tuple(self.message.query_shape)

    @property
    def query_bytes(self) -> int:
        """Size of all queries."""
        m = self.message
        return m.queries * math.prod(self.query_shape) * tensors.dtype_of(m.query_dtype).itemsize

    @property
    def cells(self) -> int:
        """Numbers in a whole ballot."""
        return self.message.queries * self.message.classes

    @property
    def width(self) -> int:
        """Labels per query."""
        return self.ballot.width(self.message.classes)

    @property
    def rows(self) -> int:
        """Rows of the secure argmax: one per label."""
        return self.message.queries * self.width

    @property
    def row_classes(self) -> int:
        """Classes in a row of the secure argmax: no and yes for an attribute."""
        return self.ballot.row_classes(self.message.classes)

    def encode(self, agent: str, votes: npt.ArrayLike) -> IntArray:
        """An agent's ballots in units, (queries, classes), from what its voter says."""
        m = self.message
        return self.ballot.encode(
            votes,
            classes=m.classes,
            fraction_bits=m.fraction_bits,
            k=self.roster[agent],
            tau=m.tau,
        )

    @cached_property
    def agent_variance(self) -> float:
        """Variance of one agent's noise, in units^2: in rounds that are not verified."""
        m = self.message
        return noise.per_agent_variance(m.sigma, m.fraction_bits, m.quorum, m.collusion)

    @cached_property
    def coin_law(self) -> CoinLaw:
        """The noise of a cell that the committee draws in a verified round."""
        return coins.law_for(self.message.sigma)

    @cached_property
    def mechanism(self) -> SkellamVote | CoinVote:
        """What the round costs the agent that it costs most."""
        return self._mechanism(list(self.roster.values()))

    def mechanism_for(self, agent: str) -> SkellamVote | CoinVote:
        """What the round costs one agent: others' k don't move what its own data moves."""
        return self._mechanism([self.roster[agent]])

    def _mechanism(self, ks: list[int]) -> SkellamVote | CoinVote:
        """The cost to agents with these k: of agents' noise only what no coalition of the assumed
        size knows counts, and all of the committee's."""
        m = self.message
        if m.verified:
            return committee_charge(
                self.ballot, queries=m.queries, sigma=m.sigma, ks=ks, tau=m.tau or None
            )
        return charge(
            self.ballot,
            queries=m.queries,
            variance=self.agent_variance * (m.quorum - m.collusion),
            fraction_bits=m.fraction_bits,
            ks=ks,
            tau=m.tau or None,
        )

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """How the ballots of a verified round are laid out, by the roster."""
        by_k = self._layouts_by_k
        return tuple(by_k[k] for k in self.roster.values()) if by_k else ()

    @cached_property
    def _layouts_by_k(self) -> dict[int, Layout]:
        """None, if such ballots can't be verified."""
        by_k = {k: self._layout_of(self.ballot, k) for k in self._ks}
        return {k: layout for k, layout in by_k.items() if layout is not None}

    def _layout_of(self, kind: BallotKind, k: int) -> Layout | None:
        m = self.message
        return kind.layout(m.classes, 1 << m.fraction_bits, k, m.tau)

    @cached_property
    def _ks(self) -> Counter[int]:
        """How many agents have each k."""
        return Counter(self.roster.values())

    @property
    def summation(self) -> Summation:
        """How the ballots of a verified round are counted."""
        m = self.message
        return Summation(self.layouts, m.queries, m.ring_bits, self.coin_law)

    def layout(self, agent: str) -> Layout:
        """How an agent's verified ballot is laid out."""
        return self._layouts_by_k[self.roster[agent]]

    def plan(self) -> PreprocessingPlan:
        """All preprocessing that the round takes."""
        engine = session_plan(self.engine, self.rows, self.row_classes, len(self.parties))
        if not self.message.verified:
            return engine
        return PreprocessingPlan((Run(tuple(self.summation.plan()), 1), *engine.runs))

    def share_bytes(self, agent: str) -> int:
        """Size of an agent's explicit share."""
        return self._share_bytes_of(self.roster[agent])

    def _share_bytes_of(self, k: int) -> int:
        if self.message.verified:
            return self._layouts_by_k[k].share_bytes(self.message.queries)
        return ring.packed_size(self.cells, self.message.ring_bits)

    def held_bytes(self, rank: int) -> int:
        """Size of all explicit shares that a party gets."""
        ks = list(self.roster.values())[rank :: len(self.parties)]
        return sum(count * self._share_bytes_of(k) for k, count in Counter(ks).items())

    @cached_property
    def total_bound(self) -> int:
        """No total exceeds this: of honest agents but with probability OVERFLOW_PROBABILITY, in a
        verified round whatever agents do."""
        m = self.message
        if m.verified:
            return sum(layout.most for layout in self.layouts) + self.coin_law.reach
        most = self.ballot.max_entry(
            fraction_bits=m.fraction_bits, ks=list(self._ks), tau=m.tau or None
        )
        votes = len(self.roster) * most
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
        require(BALLOTS.by_code(m.ballot) is not None, "the ballot kind is unknown")
        low = self.ballot.min_classes
        require(low <= m.classes <= MAX_CLASSES, f"classes must be {low} to {MAX_CLASSES}")
        shape = self.query_shape
        require(0 < len(shape) < tensors.MAX_DIMENSIONS, "a query has too many or no dimensions")
        require(
            0 < self.query_bytes <= MAX_QUERY_BYTES,
            f"the queries take over {MAX_QUERY_BYTES} bytes",
        )
        require(ENGINES.by_code(m.engine) is not None, "the engine is unknown")
        require(len(m.groups) <= MAX_LEVELS, "there are too many levels of groups")
        require(m.fraction_bits <= MAX_FRACTION_BITS, "too many fraction bits")
        require(0 < m.sigma < math.inf, "sigma must be positive")
        if m.task or m.task_digest:
            require(bool(NAME_PATTERN.fullmatch(m.task)), "the task is misnamed")
            require(len(m.task_digest) == DIGEST_BYTES, "the digest of the task is missing")
        require(bool(NAME_PATTERN.fullmatch(m.round_id)), "the round id is malformed")
        for listed, names, what, low, high in (
            (len(m.roster), self.roster.keys(), "agents", 1, MAX_AGENTS),
            (len(m.parties), set(m.parties), "parties", 2, MAX_PARTIES),
            (1, {m.dealer}, "dealers", 1, 1),
        ):
            require(low <= listed <= high, f"there must be {low} to {high} {what}")
            require(len(names) == listed, f"{what} are named twice")
            require(_well_named(names), f"{what} are misnamed")
        require(
            m.collusion < m.quorum <= len(m.roster),
            "the quorum must lie above the collusion bound and within the roster",
        )
        if self.ballot.needs_k:
            require(all(0 < k <= MAX_K for k in self._ks), f"k must be 1 to {MAX_K}")
        if self.ballot.needs_tau:
            what = "attributes" if self.ballot.attributes else "classes"
            require(0 < m.tau <= m.classes, f"tau must be 1 to the number of {what}")
        if m.verified:
            self._check_verified()
        try:
            if not m.verified:
                small = self.agent_variance <= noise.MAX_STD**2
                require(small, "the noise is too large: lower sigma")
            need = self.total_bound
            fitting = self.engine_kind.ring_bits(need)
            require(m.ring_bits == fitting, "the ring does not fit the engine and the totals")
            have = self.engine.largest_total(self.row_classes)
            self.engine.block_rows(self.row_classes)
        except ValueError as error:
            raise VoteError(ErrorKind.SPEC_INVALID, why=str(error)) from error
        held = sum(count * self._share_bytes_of(k) for k, count in self._ks.items())
        require(
            held <= MAX_SHARE_BYTES,
            f"the agents' shares take over {MAX_SHARE_BYTES} bytes: ask for fewer queries",
        )
        if need > have:
            raise VoteError(
                ErrorKind.RANGE_OVERFLOW, need=ring.bits_for(need), have=ring.bits_for(have)
            )

    def _check_verified(self) -> None:
        m = self.message
        if not self.layouts:
            choices = ", or ".join([*self._verifiable_instead(), "verified=False"])
            why = f"{self.ballot.name} ballots can't be verified: use {choices}"
            raise VoteError(ErrorKind.SPEC_INVALID, why=why)
        try:
            bits = coins.fraction_bits_for(m.sigma)
        except ValueError as error:
            raise VoteError(ErrorKind.SPEC_INVALID, why=str(error)) from error
        require(m.fraction_bits == bits, "the fraction bits do not follow from sigma")
        require(m.collusion == 0, "agents know none of a verified round's noise: collusion is 0")
        require(
            self.can_be_verified,
            "so many agents, neighbours, classes and queries are too many for a verified "
            "round: use verified=False, a smaller k, or fewer queries",
        )

    def _verifiable_instead(self) -> list[str]:
        """Ballots of the same votes that can be verified."""
        votes, k = (self.ballot.needs_k, self.ballot.attributes), max(self._ks)
        return [
            f"{kind.name} ballots"
            for kind in BALLOTS
            if (kind.needs_k, kind.attributes) == votes and self._layout_of(kind, k) is not None
        ]

    @property
    def can_be_verified(self) -> bool:
        """Whether there is a way to verify such ballots, in such a number."""
        if not self.layouts or not coins.MIN_SIGMA <= self.message.sigma <= coins.MAX_SIGMA:
            return False
        numbers = self.summation.numbers
        most = numbers * self.message.queries
        return 8 * numbers <= MAX_NUMBERS and most <= MAX_VERIFIED_NUMBERS


@lru_cache(_SPECS_KEPT)
def _parsed(wire: bytes) -> Spec:
    """Kept by its bytes, all of which are compared: what one found right all find right, as long as
    no kind of ballots or engine is registered or taken back."""
    try:
        message = common_pb2.RoundSpec.FromString(wire)
    except Exception as error:
        raise VoteError(ErrorKind.SPEC_INVALID, why="it can't be read") from error
    spec = Spec(wire, message)
    spec._check()
    return spec


def _well_named(names: Collection[str]) -> bool:
    """Whether each is a name, by one look at all of them."""
    lines = "".join(f"{name}\n" for name in names)
    return lines.count("\n") == len(names) and _NAMES.fullmatch(lines) is not None


def require(condition: bool, why: str) -> None:
    """Refuses a spec, saying why."""
    if not condition:
        raise VoteError(ErrorKind.SPEC_INVALID, why=why)
