"""A spec that does not hold together is refused with the reason; what follows from one is right."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mpc_vote.argmax.registry import ENGINES
from mpc_vote.argmax.table.level import MAX_BITS, MAX_GROUP, MIN_BITS
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy import noise
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.voting import limits
from mpc_vote.voting.ballots import BALLOTS, KNN_COUNT, KNN_FREQUENCY, ONE_HOT, BallotKind
from mpc_vote.voting.ballots.kind import MAX_FRACTION_BITS
from mpc_vote.voting.spec import Spec

RoundSpec = common_pb2.RoundSpec
Change = Callable[[RoundSpec], None]


def message(agents: int = 5, parties: int = 3, **fields: Any) -> RoundSpec:
    """A valid message of a round, with some fields set otherwise."""
    made = RoundSpec(
        round_id="round-1",
        queries_digest=bytes(32),
        queries=4,
        query_dtype=common_pb2.DTYPE_FLOAT32,
        query_shape=[3],
        classes=10,
        ballot=common_pb2.BALLOT_KIND_ONE_HOT,
        fraction_bits=4,
        sigma=2.0,
        roster=[common_pb2.RosterEntry(agent=f"agent-{i}", k=3 + i) for i in range(agents)],
        quorum=max(1, agents - 1),
        collusion=min(1, agents - 1) if agents > 2 else 0,
        parties=[f"party-{i}" for i in range(parties)],
        dealer="dealer",
        engine=common_pb2.ENGINE_CRYPTEN_PAIRWISE,
        ring_bits=64,
        deadline_unix_ms=4_102_444_800_000,
        tau=2,
    )
    made.MergeFrom(RoundSpec(**fields))
    return made


def changed(**fields: object) -> Change:
    """Sets fields, also to their defaults."""

    def apply(made: RoundSpec) -> None:
        for name, value in fields.items():
            made.ClearField(cast(Any, name))
            if isinstance(value, list):
                getattr(made, name).extend(value)
            else:
                setattr(made, name, value)

    return apply


def rostered(*names: str, k: int = 1) -> Change:
    return changed(roster=[common_pb2.RosterEntry(agent=name, k=k) for name in names])


def both(*changes: Change) -> Change:
    def apply(made: RoundSpec) -> None:
        for change in changes:
            change(made)

    return apply


KNN = changed(ballot=common_pb2.BALLOT_KIND_KNN_COUNT)
MULTI = changed(ballot=common_pb2.BALLOT_KIND_MULTI_LABEL)

REFUSALS: dict[str, tuple[Change, str]] = {
    "no queries": (changed(queries=0), "queries must be 1 to 10000"),
    "too many queries": (changed(queries=limits.MAX_QUERIES + 1), "queries must be 1 to 10000"),
    "no digest": (changed(queries_digest=b""), "digest of the queries"),
    "short digest": (changed(queries_digest=bytes(31)), "digest of the queries"),
    "one class": (changed(classes=1), "classes must be 2 to 1000"),
    "too many classes": (changed(classes=1_001), "classes must be 2 to 1000"),
    "no attributes": (both(MULTI, changed(classes=0)), "classes must be 1 to 1000"),
    "too many attributes": (both(MULTI, changed(classes=1_001)), "classes must be 1 to 1000"),
    "no ballot": (changed(ballot=0), "ballot kind is unknown"),
    "a ballot of the future": (changed(ballot=99), "ballot kind is unknown"),
    "no engine": (changed(engine=0), "engine is unknown"),
    "an engine of the future": (changed(engine=99), "engine is unknown"),
    "too fine": (changed(fraction_bits=MAX_FRACTION_BITS + 1), "too many fraction bits"),
    "no noise": (changed(sigma=0.0), "sigma must be positive"),
    "negative noise": (changed(sigma=-1.0), "sigma must be positive"),
    "NaN noise": (changed(sigma=math.nan), "sigma must be positive"),
    "infinite noise": (changed(sigma=math.inf), "sigma must be positive"),
    "absurd noise": (changed(sigma=2.0**41), "at most 2^40"),
    "more noise than is sampled": (changed(sigma=1e4), "noise is too large"),
    "no round id": (changed(round_id=""), "round id is malformed"),
    "a path as round id": (changed(round_id="../x"), "round id is malformed"),
    "no agents": (changed(roster=[]), "1 to 4096 agents"),
    "too many agents": (rostered(*map(str, range(4_097))), "1 to 4096 agents"),
    "an agent twice": (rostered("a", "b", "a"), "agents are named twice"),
    "a misnamed agent": (rostered("a", "B"), "agents are misnamed"),
    "one party": (changed(parties=["a"]), "2 to 16 parties"),
    "too many parties": (changed(parties=[str(i) for i in range(17)]), "2 to 16 parties"),
    "a party twice": (changed(parties=["a", "a"]), "parties are named twice"),
    "a misnamed party": (changed(parties=["a", "b/c"]), "parties are misnamed"),
    "no dealer": (changed(dealer=""), "dealers are misnamed"),
    "no quorum": (changed(quorum=0, collusion=0), "quorum must lie above the collusion"),
    "all may collude": (changed(quorum=3, collusion=3), "quorum must lie above the collusion"),
    "quorum above the roster": (changed(quorum=6), "within the roster"),
    "no k": (both(KNN, rostered("a", "b", k=0), changed(quorum=2)), "k must be 1 to"),
    "k too large": (
        both(KNN, rostered("a", "b", k=limits.MAX_K + 1), changed(quorum=2)),
        "k must be 1 to 1048576",
    ),
    "no tau": (both(MULTI, changed(tau=0)), "tau must be 1 to the number"),
    "tau above the attributes": (both(MULTI, changed(tau=11)), "tau must be 1 to the number"),
    "another ring": (changed(ring_bits=32), "ring does not fit the engine"),
    "no ring": (changed(ring_bits=0), "ring does not fit the engine"),
    "more shares than parties hold": (
        both(
            rostered(*map(str, range(537))),
            changed(queries=limits.MAX_QUERIES, classes=100),
        ),
        "shares take over 4294967296 bytes",
    ),
    "groups of CrypTen": (changed(groups=[5, 2]), "has a ring of 64 bits, no groups"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_spec_that_does_not_hold_together_is_refused(name: str) -> None:
    change, why = REFUSALS[name]
    made = message()
    Spec.seal(made)
    change(made)
    with pytest.raises(VoteError) as caught:
        Spec.seal(made)
    assert caught.value.kind is ErrorKind.SPEC_INVALID
    assert why in caught.value.message


@pytest.mark.parametrize(
    "change",
    [
        changed(queries=limits.MAX_QUERIES),
        changed(classes=2),
        changed(classes=1_000),
        both(MULTI, changed(classes=1, tau=1)),
        changed(fraction_bits=0),
        changed(quorum=5, collusion=4),
        changed(parties=[str(i) for i in range(16)]),
        both(KNN, rostered("a", "b", k=limits.MAX_K), changed(quorum=2, fraction_bits=0)),
        both(rostered(*map(str, range(536))), changed(queries=limits.MAX_QUERIES, classes=100)),
    ],
    ids=[
        "queries",
        "two classes",
        "classes",
        "attribute",
        "bits",
        "collusion",
        "parties",
        "k",
        "shares",
    ],
)
def test_the_edges_of_what_is_allowed_are_allowed(change: Change) -> None:
    made = message()
    change(made)
    assert Spec.seal(made).message == made


def test_bytes_that_are_no_spec_are_refused() -> None:
    with pytest.raises(VoteError, match="it can't be read") as caught:
        Spec.parse(b"\xff\xff\xff\xff")
    assert caught.value.kind is ErrorKind.SPEC_INVALID


def test_totals_that_do_not_fit_the_ring_are_refused() -> None:
    made = message()
    KNN(made)
    rostered(*map(str, range(4_096)), k=limits.MAX_K)(made)
    changed(classes=1_000, fraction_bits=MAX_FRACTION_BITS, sigma=1e-3, quorum=4_096)(made)
    with pytest.raises(VoteError) as caught:
        Spec.seal(made)
    assert caught.value.kind is ErrorKind.RANGE_OVERFLOW
    need, have = int(caught.value.values["need"]), int(caught.value.values["have"])
    assert need > have
    changed(fraction_bits=0)(made)
    assert Spec.seal(made).total_bound < Spec.seal(made).engine.largest_total(1_000)


def tabled(**fields: object) -> RoundSpec:
    """A message of a round for the table engine; its ring is still to be fitted."""
    made = message(engine=common_pb2.ENGINE_TABLE)
    changed(**fields)(made)
    return made


def fitted(made: RoundSpec) -> RoundSpec:
    """With the least ring in which no difference of two totals changes its sign."""
    bound = Spec(b"", made).total_bound
    made.ring_bits = next(b for b in range(MIN_BITS, 65) if 2 * bound < 2 ** (b - 1))
    return made


class TestRing:
    """The table engine's ring is what the totals need, so that agents upload no bit for nothing."""

    @pytest.mark.parametrize(
        ("fields", "bits"),
        [
            ({"sigma": 1e-5, "queries": 1}, 9),
            ({"sigma": 2.0}, 11),
            ({"sigma": 25.0}, 15),
            ({"sigma": 25.0, "fraction_bits": 8}, 19),
        ],
    )
    def test_just_one_ring_fits(self, fields: dict[str, object], bits: int) -> None:
        fitting = []
        for ring_bits in range(65):
            made = tabled(ring_bits=ring_bits, **fields)
            try:
                sealed = Spec.seal(made)
            except VoteError as error:
                assert error.kind is ErrorKind.SPEC_INVALID
                assert "ring does not fit the engine and the totals" in error.message
                continue
            assert sealed.engine.ring_bits == ring_bits
            assert sealed.total_bound <= sealed.engine.largest_total(sealed.row_classes)
            fitting.append(ring_bits)
        assert fitting == [bits] == [fitted(tabled(**fields)).ring_bits]

    @given(
        st.floats(1e-3, 100),
        st.integers(0, 16),
        st.lists(st.integers(1, 10_000), min_size=2, max_size=40),
        st.sampled_from([kind.code for kind in BALLOTS]),
    )
    def test_totals_up_to_the_bound_keep_the_sign_of_their_differences(
        self, sigma: float, bits: int, ks: list[int], ballot: int
    ) -> None:
        made = tabled(sigma=sigma, fraction_bits=bits, ballot=ballot, quorum=2, collusion=0)
        changed(roster=[common_pb2.RosterEntry(agent=f"a{i}", k=k) for i, k in enumerate(ks)])(made)
        # More is refused whatever the ring.
        assume(Spec(b"", made).agent_variance <= noise.MAX_STD**2)
        bound = Spec(b"", made).total_bound
        if fitted(made).ring_bits > MAX_BITS:
            made.ring_bits = MAX_BITS
            with pytest.raises(VoteError) as caught:
                Spec.seal(made)
            assert caught.value.kind is ErrorKind.RANGE_OVERFLOW
            return
        sealed = Spec.seal(made)
        ring_bits = sealed.message.ring_bits
        assert bound <= sealed.engine.largest_total(sealed.row_classes)
        assert -(2 ** (ring_bits - 1)) <= -2 * bound and 2 * bound < 2 ** (ring_bits - 1)
        # And one bit less would not do, unless the engine has no smaller ring.
        assert ring_bits == MIN_BITS or 2 * bound >= 2 ** (ring_bits - 2)

    def test_totals_up_to_31_bits_are_taken_and_larger_ones_are_refused(self) -> None:
        made = tabled(sigma=1e-5, fraction_bits=9, quorum=1, collusion=0, ring_bits=MAX_BITS)
        KNN(made)
        rostered("lone", k=limits.MAX_K - 1)(made)
        assert 2**29 - 512 <= Spec.seal(made).total_bound < 2**29
        rostered("lone", k=limits.MAX_K)(made)
        with pytest.raises(VoteError) as caught:
            Spec.seal(made)
        assert caught.value.kind is ErrorKind.RANGE_OVERFLOW
        assert "The totals of this round need 32 bits, 31 fit." in caught.value.message
        assert "ask for another engine" in caught.value.message
        # A ring that is larger than the engine's largest is no way around it,
        changed(ring_bits=32)(made)
        with pytest.raises(VoteError, match="ring does not fit the engine"):
            Spec.seal(made)
        # but another engine is.
        changed(engine=common_pb2.ENGINE_CRYPTEN_PAIRWISE, ring_bits=64)(made)
        assert Spec.seal(made).message == made


class TestGroups:
    """Groups of the table engine must let just one class win."""

    @pytest.mark.parametrize(
        ("classes", "groups"),
        [
            (10, []),
            (10, [10]),
            (10, [5, 2]),
            (10, [2, 5]),
            (10, [4, 3]),
            (10, [2, 2, 2, 2]),
            (2, []),
            (2, [2]),
            (MAX_GROUP, []),
            (MAX_GROUP, [MAX_GROUP]),
            (1_000, [MAX_GROUP, 4]),
            (1_000, [10, 10, 10]),
        ],
    )
    def test_groups_that_leave_one_class_are_taken(self, classes: int, groups: list[int]) -> None:
        made = fitted(tabled(classes=classes, groups=groups))
        assert Spec.seal(made).message == made

    @pytest.mark.parametrize("classes", [2, 10, 251])
    def test_two_rounds_are_taken_where_all_classes_meet_at_once(self, classes: int) -> None:
        sealed = Spec.seal(fitted(tabled(classes=classes, two_rounds=True)))
        assert sealed.engine.name == "table two rounds"

    @pytest.mark.parametrize(
        ("classes", "groups", "why"),
        [
            (10, [5, 2], "two rounds are for one level, without groups"),
            (252, [], "two rounds are for at most 251 classes, not 252"),
        ],
    )
    def test_two_rounds_are_refused_elsewhere(
        self, classes: int, groups: list[int], why: str
    ) -> None:
        with pytest.raises(VoteError, match=why):
            Spec.seal(fitted(tabled(classes=classes, groups=groups, two_rounds=True)))

    @pytest.mark.parametrize(
        ("classes", "groups", "why"),
        [
            (10, [2], "groups of (2,) leave 5 of 10 classes"),
            (10, [3, 3], "groups of (3, 3) leave 2 of 10 classes"),
            (1_000, [MAX_GROUP, 3], "leave 2 of 1000 classes"),
            (10, [10, 1], "groups have 2 to 256 contestants"),
            (10, [0], "groups have 2 to 256 contestants"),
            (1_000, [1_000], "groups have 2 to 256 contestants"),
            (1_000, [MAX_GROUP + 1, 4], "groups have 2 to 256 contestants"),
            (1_000, [], "1000 classes need groups: one holds at most 256"),
            (MAX_GROUP + 1, [], "257 classes need groups: one holds at most 256"),
        ],
    )
    def test_other_groups_are_refused(self, classes: int, groups: list[int], why: str) -> None:
        made = fitted(tabled(classes=classes, groups=groups))
        with pytest.raises(VoteError) as caught:
            Spec.seal(made)
        assert caught.value.kind is ErrorKind.SPEC_INVALID
        assert why in caught.value.message

    def test_attributes_meet_two_at_a_time_whatever_their_number(self) -> None:
        made = tabled(classes=1_000, tau=2)
        MULTI(made)
        assert Spec.seal(fitted(made)).row_classes == 2


class TestDigest:
    def test_it_is_over_the_bytes(self) -> None:
        sealed = Spec.seal(message())
        assert sealed.digest == hashlib.sha256(sealed.wire).digest()

    def test_other_bytes_of_the_same_message_are_another_spec(self) -> None:
        sealed = Spec.seal(message())
        again = Spec.parse(sealed.wire + RoundSpec(sigma=2.0).SerializeToString())
        assert again.message == sealed.message
        assert again.digest != sealed.digest

    def test_sealing_twice_is_the_same_spec(self) -> None:
        assert Spec.seal(message()).digest == Spec.seal(message()).digest
        assert Spec.seal(message()).digest != Spec.seal(message(sigma=2.5)).digest


@given(
    st.floats(1e-3, 50),
    st.integers(0, 8),
    st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    st.data(),
)
def test_every_quorum_carries_the_noise_that_was_asked_for(
    sigma: float, bits: int, sizes: tuple[int, int], data: st.DataObject
) -> None:
    agents, quorum = sizes
    collusion = data.draw(st.integers(0, quorum - 1))
    made = message(agents=agents)
    changed(sigma=sigma, fraction_bits=bits, quorum=quorum, collusion=collusion)(made)
    sealed = Spec.seal(made)
    wanted = Fraction(sigma) ** 2 * 4**bits
    unknown = Fraction(sealed.agent_variance) * (quorum - collusion)
    assert wanted <= unknown <= wanted * (1 + Fraction(1, 10**12))
    assert sealed.mechanism.variance == pytest.approx(float(wanted), rel=1e-12)
    assert sealed.mechanism.queries == made.queries


@pytest.mark.parametrize("agents", [1, 2, 7, 12, 50])
@pytest.mark.parametrize("parties", [2, 3, 5])
def test_explicit_shares_rotate_evenly_over_the_parties(agents: int, parties: int) -> None:
    sealed = Spec.seal(message(agents=agents, parties=parties))
    ranks = Counter(sealed.explicit_rank(agent) for agent in sealed.roster)
    loads = [ranks[rank] for rank in range(parties)]
    assert sum(loads) == agents
    assert max(loads) - min(loads) <= 1


@pytest.mark.parametrize("ballot", list(BALLOTS))
def test_the_bound_holds_for_the_worst_ballots_and_is_not_idle(ballot: BallotKind) -> None:
    sealed = Spec.seal(message(agents=20, ballot=ballot.code))
    unit = 1 << sealed.message.fraction_bits
    # Every agent puts all that its ballot may hold into one cell.
    most = {KNN_COUNT: [k * unit for k in sealed.roster.values()]}
    votes = sum(most.get(ballot, [unit] * 20))
    sampler = noise.SkellamSampler(sealed.agent_variance)
    totals = votes + sampler.sample((20, 50, sealed.cells)).sum(axis=0)
    # Fails with probability below 2^-54: fifty rounds at 2^-60.
    assert np.abs(totals).max() <= sealed.total_bound
    # And the votes alone come close to it: 12 deviations of the noise is what it adds at most.
    bulk = 20 * max(most.get(ballot, [unit]))
    assert votes <= bulk < sealed.total_bound < bulk + 12 * math.sqrt(20 * sealed.agent_variance)


def test_a_larger_round_has_a_larger_bound() -> None:
    small, large = message(queries=1, classes=2), message(queries=10_000, classes=1_000)
    assert Spec.seal(small).total_bound < Spec.seal(large).total_bound


class TestShape:
    def test_one_label_per_query(self) -> None:
        sealed = Spec.seal(message(queries=4, classes=10))
        assert (sealed.cells, sealed.width, sealed.rows, sealed.row_classes) == (40, 1, 4, 10)

    def test_multi_label_is_a_row_of_no_and_yes_per_attribute(self) -> None:
        made = message(queries=4, classes=10)
        MULTI(made)
        sealed = Spec.seal(made)
        assert (sealed.cells, sealed.width, sealed.rows, sealed.row_classes) == (40, 10, 40, 2)

    def test_every_engine_is_named_once_and_found_again(self) -> None:
        codes = [kind.code for kind in ENGINES]
        assert len(set(ENGINES.names())) == len(set(codes)) == len(codes)
        for code in codes:
            made = message()
            changed(engine=code)(made)
            if code == common_pb2.ENGINE_TABLE:
                fitted(made)
            assert Spec.seal(made).engine.ring_bits == made.ring_bits


@given(st.lists(st.integers(1, 5_000), min_size=1, max_size=8))
def test_default_fraction_bits_tell_one_neighbour_apart(ks: list[int]) -> None:
    assert ONE_HOT.default_fraction_bits(ks) == 4
    bits = KNN_FREQUENCY.default_fraction_bits(ks)
    assert 2**bits >= 16 * max(ks) > 2 ** (bits - 1)


def test_a_process_reads_the_same_bytes_once() -> None:
    """However many agents it runs: each is told the whole roster."""
    wire = Spec.seal(message()).wire
    assert Spec.parse(bytes(bytearray(wire))) is Spec.parse(bytes(bytearray(wire)))


@pytest.mark.parametrize("name", ["a\nb", "a\n", "", "A", "a-"])
def test_a_name_that_is_none_is_found_among_many(name: str) -> None:
    given = message()
    given.roster[1].agent = name
    with pytest.raises(VoteError, match="misnamed"):
        Spec.seal(given)
