"""Shares add up to the ballot, and all but one of them say nothing about it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mpc_vote.mpc import ring
from mpc_vote.mpc.prg import SEED_BYTES, SeedStream, new_seed
from mpc_vote.mpc.sharing import Share, ShareReader, expand, split, sum_blocks
from mpc_vote.proto.mpcvote.v1 import party_pb2

# Of one chi-square test; no test here makes more than 40 of them.
FAILURE = 1e-9

shapes = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)


@st.composite
def sharings(draw: st.DrawFn) -> tuple[np.ndarray, int, int, int]:
    """Values of any shape, a number of parties, the explicit rank, and the ring."""
    shape = draw(shapes)
    size = int(np.prod(shape))
    values = draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=size, max_size=size))
    parties = draw(st.integers(2, 6))
    explicit = draw(st.integers(0, parties - 1))
    return (
        np.array(values, dtype=np.int64).reshape(shape),
        parties,
        explicit,
        draw(st.integers(1, 64)),
    )


def read(share: Share, count: int, bits: int) -> ring.Words:
    return ShareReader(share, bits).take(count)


def looks_uniform(words: ring.Words, bits: int) -> bool:
    """Whether the low bits, as bytes, pass a chi-square test against uniform ones."""
    counts = np.bincount(np.frombuffer(ring.pack(words, bits), np.uint8), minlength=256)
    return float(stats.chisquare(counts).pvalue) > FAILURE


@given(sharings())
def test_shares_sum_to_the_values(given_: tuple[np.ndarray, int, int, int]) -> None:
    values, parties, explicit, bits = given_
    shares = split(values, parties, explicit, bits)
    total = sum_blocks([ShareReader(share, bits) for share in shares], values.size)
    assert ring.pack(total, bits) == ring.pack(values.reshape(-1).view(np.uint64), bits)


@given(sharings(), st.lists(st.integers(1, 3), max_size=6))
def test_blocks_that_end_on_a_byte_read_as_the_whole(
    given_: tuple[np.ndarray, int, int, int], eights: list[int]
) -> None:
    values, parties, explicit, bits = given_
    for share in split(values, parties, explicit, bits):
        reader, blocks, left = ShareReader(share, bits), [], values.size
        for step in eights:
            if left > 8 * step:
                blocks.append(reader.take(8 * step))
                left -= 8 * step
        blocks.append(reader.take(left))
        assert np.concatenate(blocks).tolist() == read(share, values.size, bits).tolist()


@given(sharings())
def test_upload_is_one_ballot_and_a_seed_per_further_party(
    given_: tuple[np.ndarray, int, int, int],
) -> None:
    values, parties, explicit, bits = given_
    shares = split(values, parties, explicit, bits)
    sizes = [share.upload_bytes for share in shares]
    assert sizes.pop(explicit) == ring.packed_size(values.size, bits)
    assert sizes == [SEED_BYTES] * (parties - 1)


def test_a_ballot_on_the_wire_is_hardly_larger_than_a_plain_one() -> None:
    cells, bits = 500 * 10, 25
    messages = [
        party_pb2.SubmitSharesRequest(
            header=party_pb2.SubmissionHeader(
                round_id="r" * 32, spec_digest=bytes(32), submission_id=bytes(16), seed=share.seed
            ),
            packed=share.packed,
        )
        for share in split(np.zeros(cells, dtype=np.int64), 3, 1, bits)
    ]
    assert sum(message.ByteSize() for message in messages) <= 1.05 * cells * bits / 8


@pytest.mark.parametrize("bits", [13, 20, 24, 25, 32, 33, 64])
def test_many_ballots_sum_cell_by_cell(bits: int) -> None:
    rng = np.random.default_rng(5)
    ballots = rng.integers(-100, 100, (9, 4, 6))
    uploads = [split(ballot, 3, i % 3, bits) for i, ballot in enumerate(ballots)]
    totals = [
        sum_blocks([ShareReader(upload[rank], bits) for upload in uploads], 24) for rank in range(3)
    ]
    opened = ring.signed(np.add.reduce(totals), bits)
    assert opened.tolist() == ballots.sum(axis=0).reshape(-1).tolist()


@pytest.mark.parametrize(
    ("bits", "size"), [(1, 1), (8, 1), (9, 2), (16, 2), (17, 4), (32, 4), (33, 8), (64, 8)]
)
def test_a_seed_expands_to_whole_words_of_its_stream(bits: int, size: int) -> None:
    seed = new_seed()
    words = expand(SeedStream(seed), 100, bits)
    assert words.tolist() == np.frombuffer(SeedStream(seed).take(100 * size), f"<u{size}").tolist()


@pytest.mark.parametrize("bits", [20, 25, 64])
@pytest.mark.parametrize("parties", [2, 3, 4])
def test_all_shares_but_one_look_uniform(parties: int, bits: int) -> None:
    values = np.full(8_000, 16, dtype=np.int64)
    for explicit in range(parties):
        shares = [read(s, values.size, bits) for s in split(values, parties, explicit, bits)]
        for known in itertools.combinations(shares, parties - 1):
            assert looks_uniform(np.add.reduce(known), bits)
            for share in known:
                assert looks_uniform(share, bits)
        # The same test sees the ballot once the last share is there.
        assert not looks_uniform(np.add.reduce(shares), bits)


def test_sharing_twice_shares_nothing_in_common() -> None:
    values = np.zeros(100, dtype=np.int64)
    first, second = split(values, 3, 0, 64), split(values, 3, 0, 64)
    for one, other in itertools.combinations([*first, *second], 2):
        assert not set(read(one, 100, 64).tolist()) & set(read(other, 100, 64).tolist())


def test_nothing_secret_is_shown() -> None:
    seeded, explicit = split(np.arange(4), 2, 1, 64)
    for share in (seeded, explicit):
        assert f"{share!r} {share} {[share]}" == "Share(hidden) Share(hidden) [Share(hidden)]"


def test_the_values_are_left_alone() -> None:
    values = np.arange(10)
    split(values, 3, 2, 64)
    assert values.tolist() == list(range(10))


def test_reading_past_the_explicit_share_is_refused() -> None:
    reader = ShareReader(split(np.arange(8), 2, 0, 5)[0], 5)
    reader.take(8)
    with pytest.raises(ValueError, match="8 values of 5 bits take 5 bytes"):
        reader.take(8)


@pytest.mark.parametrize("parties", [0, 1])
def test_a_sharing_among_less_than_two_is_refused(parties: int) -> None:
    with pytest.raises(ValueError, match="at least two parties"):
        split(np.arange(4), parties, 0, 64)


@pytest.mark.parametrize("explicit", [-1, 3])
def test_an_explicit_rank_that_is_no_party_is_refused(explicit: int) -> None:
    with pytest.raises(ValueError, match=f"no rank {explicit} among 3 parties"):
        split(np.arange(4), 3, explicit, 64)
