"""A party that opens wrong bits in a verified round: it can move votes, and reads none.

Invariant: nothing that depends on votes is opened before the noise is in. There was a check that
broke it: whether an agent had too many votes on a query, opened after a party had flipped one flag
of it, told what that flag was.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count as numbers
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import linear_sum_assignment

from mpc_vote.mpc import in_process, ring
from mpc_vote.mpc.channel import Channel, Traffic
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Preprocessing
from mpc_vote.mpc.prg import SeedStream, Words
from mpc_vote.mpc.sharing import Share
from mpc_vote.privacy.coins import CoinLaw
from mpc_vote.simulation.vote import simulated_spec
from mpc_vote.verified import encoding as layouts
from mpc_vote.verified.bit_conversion import Array, BitConversionPart
from mpc_vote.verified.encoding import BitReader, Bits, IntArray, Layout, encode, split_bits
from mpc_vote.verified.summation import ByteSource, Summation
from mpc_vote.voting.aggregation import Totals
from mpc_vote.voting.ballots import KNN_COUNT, MULTI_LABEL, ONE_HOT, BallotKind
from mpc_vote.voting.spec import Spec
from tests.unit.verified.plain import Tosses, counted, noise_of, pointers_of, tossed, votes_in

PARTIES, QUERIES, CLASSES, LIAR = 3, 64, 3, 0
ROSTER = {"agent-0": 7, "agent-1": 2, "agent-2": 5}
KINDS = (ONE_HOT, KNN_COUNT, MULTI_LABEL)


def spec_of(kind: BallotKind) -> Spec:
    return simulated_spec(
        kind, QUERIES, CLASSES, ROSTER, 3.0, tau=2, parties=PARTIES, verified=True
    )


def full(layout: Layout, rng: np.random.Generator) -> IntArray:
    """A ballot with no vote to spare, as those of neighbours mostly are."""
    if layout.attributes:
        order = rng.random((QUERIES, CLASSES)).argsort(axis=1)
        return layout.unit * (order < layout.votes).astype(np.int64)
    return layout.unit * rng.multinomial(layout.votes, [1 / CLASSES] * CLASSES, QUERIES)


def ballots_of(spec: Spec, seed: int) -> list[Bits]:
    """The bits of every agent."""
    rng = np.random.default_rng(seed)
    return [encode(layout, full(layout, rng)) for layout in spec.layouts]


def coins_of(spec: Spec) -> int:
    """Of all cells."""
    return spec.cells * spec.coin_law.coins


def as_opened(spec: Spec, bits: Sequence[Bits], coins: Bits | None = None) -> bytes:
    """The bits of all agents, and of all coins, in the places that they have in the exchange."""
    pointers, flags = [], []
    for layout, own in zip(spec.layouts, bits, strict=True):
        cut = layout.pointers * layout.pointer_bits
        if cut:
            weights = 1 << np.arange(layout.pointer_bits)
            pointers.append(own[:, :cut].reshape(-1, layout.pointer_bits) @ weights)
        flags.append(own[:, cut:].reshape(-1))
    flags.append(np.zeros(coins_of(spec), np.uint8) if coins is None else coins)
    width = spec.layouts[0].pointer_bits
    packed = ring.pack_planes(np.concatenate(pointers).astype(np.uint64), width) if width else b""
    return packed + np.packbits(np.concatenate(flags), bitorder="little").tobytes()


class Flipping:
    """A party's channel, on which the liar flips some of the first bits that it opens; it keeps
    what all parties sent."""

    def __init__(self, channel: Channel, flips: bytes) -> None:
        self._channel, self._flips = channel, flips
        self.rank, self.size, self.traffic = channel.rank, channel.size, Traffic()
        self.exchanges: list[Sequence[bytes]] = []

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        if self.rank == LIAR and not self.exchanges:
            payload = bytes(x ^ y for x, y in zip(payload, self._flips, strict=True))
        self.exchanges.append(self._channel.exchange(payload))
        return self.exchanges[-1]


def attacked(
    spec: Spec,
    shares: Sequence[Sequence[Share]],
    flips: bytes,
    sources: Sequence[ByteSource] | None = None,
) -> tuple[IntArray, list[Sequence[bytes]]]:
    """The totals before the argmax, (queries, classes), and all exchanges until then."""

    def party(
        channel: Channel, preprocessing: Preprocessing
    ) -> tuple[np.ndarray, list[Sequence[bytes]]]:
        own = {agent: held[channel.rank] for agent, held in zip(ROSTER, shares, strict=True)}
        flipping = Flipping(channel, flips)
        coins = None if sources is None else sources[channel.rank]
        rows = Totals(spec, own, coins).take(spec.rows, flipping, preprocessing)
        return rows.reshape(spec.rows, -1), flipping.exchanges

    found = run_committee(PARTIES, party)
    bits = spec.message.ring_bits
    total = ring.signed(np.add.reduce([rows for rows, _ in found]), bits)
    cells = total[:, 1] if spec.ballot.attributes else total
    return cells.reshape(QUERIES, CLASSES), found[LIAR][1]


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_no_answer_to_a_flipped_bit_before_the_argmax(kind: BallotKind) -> None:
    """One bit of each query is flipped, as in the attack: the parties open all bits once, and
    nothing that the flip has an effect on."""
    spec = spec_of(kind)
    bits = ballots_of(spec, 1)
    shares = [split_bits(own, PARTIES, 0) for own in bits]
    flips = [np.zeros_like(own) for own in bits]
    flips[0][:, 0] = 1
    _, exchanges = attacked(spec, shares, as_opened(spec, flips))
    assert len(exchanges) == 1
    size = sum(own.size for own in bits) + coins_of(spec)
    assert {len(payload) for payload in exchanges[0]} == {size // 8}


@pytest.mark.parametrize("kind", KINDS)
def test_what_others_open_does_not_depend_on_flips(
    kind: BallotKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same shares and masks, byte for byte; so flips change what is opened by what the
    liar knows, and by nothing else."""
    spec = spec_of(kind)
    shares = [split_bits(own, PARTIES, 0) for own in ballots_of(spec, 2)]
    rng = np.random.default_rng(3)
    flips = as_opened(
        spec,
        [rng.integers(0, 2, (QUERIES, own.bits), np.uint8) for own in spec.layouts],
        rng.integers(0, 2, coins_of(spec), np.uint8),
    )
    sent = []
    for wrong in (bytes(len(flips)), flips):
        sources = [SeedStream(bytes([rank]) * 32).take for rank in range(PARTIES)]
        seeds = (number.to_bytes(32) for number in numbers())
        monkeypatch.setattr(in_process, "new_seed", lambda seeds=seeds: next(seeds))
        (payloads,) = attacked(spec, shares, wrong, sources)[1]
        sent.append(payloads)
    assert sent[0][1:] == sent[1][1:]
    assert bytes(x ^ y for x, y in zip(sent[0][LIAR], sent[1][LIAR], strict=True)) == flips


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_opened_of_flipped_bits_is_uniform(kind: BallotKind) -> None:
    spec = spec_of(kind)
    flips = as_opened(spec, [np.ones((QUERIES, own.bits), np.uint8) for own in spec.layouts])
    for seed in (4, 5):
        shares = [split_bits(own, PARTIES, 0) for own in ballots_of(spec, seed)]
        (payloads,) = attacked(spec, shares, flips)[1]
        opened = np.bitwise_xor.reduce([np.frombuffer(one, np.uint8) for one in payloads])
        halves = opened[:, None] >> np.array([0, 4]) & 15
        assert stats.chisquare(np.bincount(halves.reshape(-1), minlength=16)).pvalue > 1e-7


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.02, 0.5, 1.0])
def test_flips_move_votes_and_nobody_is_left_out(kind: BallotKind, share: float) -> None:
    """Every agent is counted, with the votes of its flipped bits: never more than it has."""
    spec = spec_of(kind)
    bits, rng = ballots_of(spec, 6), np.random.default_rng(7)
    flips = [(rng.random(own.shape) < share).astype(np.uint8) for own in bits]
    shares = [split_bits(own, PARTIES, 0) for own in bits]
    tosses = [Tosses() for _ in range(PARTIES)]
    totals, _ = attacked(spec, shares, as_opened(spec, flips), tosses)
    totals = totals - noise_of(spec.coin_law, tossed(tosses, coins_of(spec)), CLASSES)
    moved = [own ^ flip for own, flip in zip(bits, flips, strict=True)]
    expected = [counted(layout, own) for layout, own in zip(spec.layouts, moved, strict=True)]
    assert np.array_equal(totals, sum(expected))
    for layout, own in zip(spec.layouts, moved, strict=True):
        votes = votes_in(layout, own)
        most = votes.max() if layout.attributes else votes.sum(axis=1).max()
        assert most <= (1 if layout.attributes else layout.votes)


# How far one record moves the totals, whatever is flipped

NEIGHBOURS = [
    ([2, 1, 1], [1, 2, 1]),
    ([4, 0, 0], [3, 0, 1]),
    ([1, 1, 0], [2, 1, 0]),
    ([0, 0, 0], [0, 1, 0]),
]
SMALL = Layout(classes=3, unit=16, votes=4)


def bits_in_all_orders(ballot: list[int], orders: IntArray, patch: pytest.MonkeyPatch) -> Bits:
    """By order, the bits of one query."""
    patch.setattr(layouts, "random_orders", lambda rows, length: orders)
    rows = np.array([ballot] * len(orders)) * SMALL.unit
    return encode(SMALL, rows)


def farthest(one: Bits, other: Bits, flips: Bits) -> int:
    """How far apart votes are, squared, as each of the equally likely ballots of one world is
    paired with one of the other, as well as can be."""
    votes, others = votes_in(SMALL, one ^ flips), votes_in(SMALL, other ^ flips)
    distances = ((votes[:, None] - others[None]) ** 2).sum(axis=2)
    # So convex a cost that a pairing with a larger distance is never the cheaper one.
    chosen = linear_sum_assignment((1.0 + len(one)) ** distances)
    return int(distances[chosen].max())


def all_flips() -> list[Bits]:
    return list((np.arange(1 << SMALL.bits)[:, None] >> np.arange(SMALL.bits) & 1).astype(np.uint8))


@pytest.mark.parametrize(("one", "other"), NEIGHBOURS)
def test_one_record_moves_one_vote_from_a_class_to_another_whatever_is_flipped(
    one: list[int], other: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """D2^2 is 2, as without the malicious party: for every flip, over all orders of pointers."""
    orders = np.array(list(permutations(range(SMALL.votes))))
    bits = (
        bits_in_all_orders(one, orders, monkeypatch),
        bits_in_all_orders(other, orders, monkeypatch),
    )
    assert max(farthest(*bits, flips) for flips in all_flips()) == 2


def test_pointers_in_a_fixed_order_would_let_one_record_move_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = np.arange(SMALL.votes)[None]
    bits = (
        bits_in_all_orders([1, 1, 1], order, monkeypatch),
        bits_in_all_orders([0, 1, 2], order, monkeypatch),
    )
    assert max(farthest(*bits, flips) for flips in all_flips()) > 2


def test_flips_of_attributes_keep_two_ballots_as_far_apart_as_they_are() -> None:
    """So D2^2 is the number of attributes in which they differ."""
    layout = Layout(classes=6, unit=16, votes=3, attributes=True)
    rng = np.random.default_rng(8)
    said = rng.random((2, 200, 6)).argsort(axis=2) < 3
    one, other = (encode(layout, 16 * b.astype(np.int64)) for b in said)
    flips = rng.integers(0, 2, one.shape, np.uint8)
    moved = votes_in(layout, one ^ flips) - votes_in(layout, other ^ flips)
    assert np.array_equal((moved**2).sum(axis=1), (said[0] != said[1]).sum(axis=1))


def test_an_agents_neighbour_is_a_row_left_out_for_pointers_and_a_row_of_noes_for_attributes() -> (
    None
):
    """Whatever is flipped: the other way round, flips make votes of nothing."""
    pointers, flags = Layout(classes=6, unit=1), Layout(classes=6, unit=1, votes=2, attributes=True)
    vote, none = (np.array([row]) for row in ([0, 1, 0, 0, 0, 0], [0] * 6))
    yes = np.array([[1, 0, 0, 1, 0, 0]])

    def farthest_of(layout: Layout, one: Bits, other: Bits | None) -> int:
        found = 0
        for number in range(1 << layout.bits):
            flips = (number >> np.arange(layout.bits) & 1).astype(np.uint8)[None]
            without = 0 if other is None else votes_in(layout, other ^ flips)
            found = max(found, int(((votes_in(layout, one ^ flips) - without) ** 2).sum()))
        return found

    cast, nothing = encode(pointers, vote), encode(pointers, none)
    assert farthest_of(pointers, cast, None) == 1
    assert farthest_of(pointers, cast, nothing) == 2
    said, noes = encode(flags, yes), encode(flags, none)
    assert farthest_of(flags, said, noes) == 2
    assert farthest_of(flags, said, None) == 6


# The simulator of docs/security.md, section 8: what is sent and what is gone on with are a function
# of the noisy totals of shifted votes


class Dealt:
    """Preprocessing that is one part."""

    def __init__(self, part: BitConversionPart) -> None:
        self._part = part

    def take(self, item: Any) -> Any:
        return self._part


class Opposite:
    """The honest party's channel, of two: the liar's message is ready before."""

    rank, size = 1, 2

    def __init__(self, told: bytes) -> None:
        self._told, self.sent, self.traffic = told, b"", Traffic()

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        self.sent = payload
        return [self._told, payload]


class World:
    """The votes of an agent and the coins, in bits; the liar's half is the same in all worlds."""

    def __init__(self, layout: Layout, law: CoinLaw, votes: Bits, coins: Bits) -> None:
        self.layout, self.law, self.votes, self.coins = layout, law, votes, coins
        self.count = Summation((layout,), len(votes), 16, law)

    def flat(self) -> tuple[Array, Array]:
        """Pointers and flags."""
        if self.layout.attributes:
            return np.zeros(0, np.uint16), np.concatenate([self.votes.reshape(-1), self.coins])
        return pointers_of(self.layout, self.votes).reshape(-1).astype(np.uint16), self.coins

    def totals(self, votes: Bits, coins: Bits) -> IntArray:
        """Noisy, of the votes and the coins as they were shifted."""
        return counted(self.layout, votes) + noise_of(self.law, coins, self.layout.classes)


def honest_run(
    world: World, half: World, liar: BitConversionPart, masks: tuple[Array, Array], told: bytes
) -> tuple[bytes, Words]:
    """What the honest party sends, and its shares of the totals, where these are all masks."""
    pointers, flags = masks
    units = np.zeros_like(liar.units)
    units[np.arange(len(pointers)), pointers] = 1
    own = BitConversionPart(
        pointers ^ liar.pointer_masks,
        units - liar.units,
        flags ^ liar.flag_masks,
        flags.astype(liar.flags.dtype) - liar.flags,
    )
    share = Share(packed=np.packbits(world.votes ^ half.votes, bitorder="little").tobytes())
    drawn = np.packbits(world.coins ^ half.coins, bitorder="little").tobytes()
    channel = Opposite(told)
    reader = BitReader(share, world.layout)
    shares = world.count.run([reader], channel, Dealt(own), lambda size: drawn)
    return channel.sent, shares & np.uint64(0xFFFF)


@pytest.mark.parametrize(
    "layout", [Layout(3, 1), Layout(3, 2, 3), Layout(4, 1, 2, attributes=True)], ids=str
)
def test_the_view_is_simulated_from_the_totals_of_shifted_votes(layout: Layout) -> None:
    """Any other votes, with coins that make the totals of shifted votes the same, explain the same
    view with as many masks; and where those totals differ, so do the shares that are gone on
    with."""
    rng, law, queries = np.random.default_rng(9), CoinLaw(((1, 64),)), 8

    def bits(*shape: int) -> Bits:
        return rng.integers(0, 2, shape, np.uint8)

    coins = queries * layout.classes * law.coins
    flip_votes, flip_coins = bits(queries, layout.bits), bits(coins)
    half = World(layout, law, bits(queries, layout.bits), bits(coins))
    first = World(layout, law, bits(queries, layout.bits), bits(coins))
    (item,) = first.count.plan()
    liar = BitConversionPart(
        bits(item.pointers) if not item.pointers else rng.integers(0, item.places, item.pointers),
        rng.integers(0, 1 << 16, (item.pointers, item.places), np.uint16),
        bits(item.flags),
        rng.integers(0, 1 << 16, item.flags, np.uint16),
    )
    liar = liar._replace(pointer_masks=liar.pointer_masks.astype(np.uint16))
    pointers, flags = half.flat()
    moved = World(layout, law, flip_votes, flip_coins).flat()
    sent_pointers = pointers ^ liar.pointer_masks ^ moved[0]
    wide = sent_pointers.astype(np.uint64)
    packed = ring.pack_planes(wide, item.pointer_bits) if item.pointers else b""
    told = packed + np.packbits(flags ^ liar.flag_masks ^ moved[1], bitorder="little").tobytes()
    masks = (
        rng.integers(0, item.places, item.pointers).astype(np.uint16),
        bits(item.flags),
    )
    seen, shares = honest_run(first, half, liar, masks, told)
    target = first.totals(first.votes ^ flip_votes, first.coins ^ flip_coins)

    votes = bits(queries, layout.bits)
    noise = target - counted(layout, votes ^ flip_votes)
    heads = (noise + law.reach).reshape(-1, 1)
    assert (heads >= 0).all() and (heads <= law.coins).all()
    wanted = (np.arange(law.coins) < heads).astype(np.uint8).reshape(-1)
    other = World(layout, law, votes, wanted ^ flip_coins)
    assert not np.array_equal(votes, first.votes)
    explained = tuple(
        mask ^ before ^ after
        for mask, before, after in zip(masks, first.flat(), other.flat(), strict=True)
    )
    again, same = honest_run(other, half, liar, explained, told)
    assert again == seen
    assert np.array_equal(same, shares)

    plain = World(layout, law, votes, first.coins)
    unlike = tuple(
        mask ^ before ^ after
        for mask, before, after in zip(masks, first.flat(), plain.flat(), strict=True)
    )
    again, differs = honest_run(plain, half, liar, unlike, told)
    assert again == seen and not np.array_equal(differs, shares)
