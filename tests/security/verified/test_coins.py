"""What the committee really draws: independent noise of the stated law, that no party can bend.

Every test that something is found plants the fault; the tests of the law have a false alarm in a
million runs, or fewer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from mpc_vote.mpc import in_process, prg, ring
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Preprocessing
from mpc_vote.mpc.prg import SeedStream, Words
from mpc_vote.privacy.coins import CoinLaw, law_for
from mpc_vote.verified import summation
from mpc_vote.verified.encoding import IntArray, Layout
from mpc_vote.verified.summation import ByteSource, Summation
from tests.security.verified.test_malicious_party import Flipping

PARTIES, QUERIES, CLASSES = 3, 2048, 3
FALSE_ALARM = 1e-7
LAWS = {sigma: law_for(sigma) for sigma in (4.0, 25.0)}
SMALL = LAWS[4.0]

Sources = Callable[[int], ByteSource]


def drawn(
    law: CoinLaw = SMALL,
    sources: Sources | None = None,
    flips: bytes | None = None,
    zero: bool = False,
) -> IntArray:
    """The noise of a count in which nobody votes, (queries, classes)."""
    count = Summation((Layout(CLASSES, 1),), QUERIES, 16, law)

    def party(channel: Channel, preprocessing: Preprocessing) -> Words:
        source = None if sources is None else sources(channel.rank)
        if zero and channel.rank:
            source = bytes
        over = channel if flips is None else Flipping(channel, flips)
        return count.run([None], over, preprocessing, source)

    total = np.add.reduce(run_committee(PARTIES, party)) & np.uint64(0xFFFF)
    return ring.signed(total, 16).reshape(QUERIES, CLASSES)


def fit(noise: IntArray, law: CoinLaw) -> float:
    """How likely such a histogram is by the law: cells with too few draws go together."""
    expected = law.probabilities() * noise.size
    seen = np.bincount(noise.reshape(-1) + law.reach, minlength=2 * law.reach + 1)
    edges = [0]
    for place in range(len(expected)):
        if expected[edges[-1] : place].sum() >= 20:
            edges.append(place)
    edges.pop()
    groups = [np.add.reduceat(numbers, edges) for numbers in (seen, expected)]
    return float(stats.chisquare(*groups).pvalue)


def apart(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> float:
    """How likely such a correlation is of numbers that are independent."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(stats.pearsonr(one.reshape(-1), other.reshape(-1)).pvalue)


def suspicion(law: CoinLaw = SMALL) -> float:
    """The least likely of all that is looked at, in two counts one after the other."""
    first, second = drawn(law), drawn(law)
    found = [fit(first, law), fit(second, law), apart(first, second)]
    found += [apart(first[:, 0], first[:, 1]), apart(first[:, 1], first[:, 2])]
    found += [apart(first[:-1], first[1:]), apart(abs(first[:-1]), abs(first[1:]))]
    return min(found)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_noise_has_the_law_and_is_independent_of_cell_row_and_count(law: CoinLaw) -> None:
    assert suspicion(law) > FALSE_ALARM


def test_the_noise_never_leaves_its_reach_and_is_of_both_signs() -> None:
    noise = drawn()
    assert np.abs(noise).max() <= SMALL.reach
    assert noise.min() < 0 < noise.max()


# Parties that do not follow the protocol


def bent(rank: int) -> ByteSource:
    """What all parties but the last might draw: ones, or the same bits every time."""
    if rank == 0:
        return lambda size: b"\xff" * size
    if rank < PARTIES - 1:
        return SeedStream(bytes(32)).take
    return summation.fresh_bytes()


def test_all_parties_but_one_may_choose_their_bits() -> None:
    assert fit(drawn(sources=bent), SMALL) > FALSE_ALARM
    assert apart(drawn(sources=bent), drawn(sources=bent)) > FALSE_ALARM


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_flips_of_opened_coins_leave_the_law_as_it_is(share: float) -> None:
    """The liar flips what it opens, after it saw what others opened or before."""
    pointers = ring.planes_size(QUERIES, 2)
    coins = QUERIES * CLASSES * SMALL.coins
    rng = np.random.default_rng(1)
    chosen = np.packbits(rng.random(coins) < share, bitorder="little").tobytes()
    noise = drawn(flips=bytes(pointers) + chosen)
    assert fit(noise, SMALL) > FALSE_ALARM
    assert apart(noise[:, 0], noise[:, 1]) > FALSE_ALARM


def test_shares_of_the_noise_of_all_parties_but_one_say_nothing_about_it() -> None:
    count = Summation((Layout(CLASSES, 1),), QUERIES, 16, SMALL)
    shares = run_committee(PARTIES, lambda c, p: count.run([None], c, p))
    noise = ring.signed(np.add.reduce(shares) & np.uint64(0xFFFF), 16)
    known = ring.signed(np.add.reduce(shares[1:]) & np.uint64(0xFFFF), 16)
    assert apart(noise, known) > FALSE_ALARM
    assert stats.kstest((known + 0.5) / 2**16 + 0.5, "uniform").pvalue > FALSE_ALARM


# Faults


def test_bits_of_seeds_that_the_dealer_knows_would_be_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the same dealer's seeds twice the noise differs; coins from those seeds would not."""

    def fixed() -> Callable[[], bytes]:
        seeds = iter(bytes([number]) * 32 for number in range(99))
        return lambda: next(seeds)

    def twice() -> list[IntArray]:
        found = []
        for _ in range(2):
            monkeypatch.setattr(in_process, "new_seed", fixed())
            found.append(drawn())
        return found

    first, second = twice()
    assert apart(first, second) > FALSE_ALARM
    dealt = bytes([PARTIES]) * 32
    monkeypatch.setattr(summation, "fresh_bytes", lambda: SeedStream(dealt, 1).take)
    first, second = twice()
    assert np.array_equal(first, second)


def test_every_count_has_a_key_of_its_own_from_the_operating_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def urandom(size: int) -> bytes:
        asked.append(size)
        return bytes([len(asked)]) * size

    monkeypatch.setattr("os.urandom", urandom)
    assert summation.fresh_bytes()(64) != summation.fresh_bytes()(64)
    assert asked == [prg.SEED_BYTES] * 2


def once_for_a_row(law: CoinLaw) -> Callable[[], ByteSource]:
    """Coins of the first class serve all classes of the query."""

    def source() -> ByteSource:
        stream = SeedStream(prg.new_seed())

        def take(size: int) -> bytes:
            rows = 8 * size // (CLASSES * law.coins)
            own = stream.bits(rows * law.coins).astype(np.uint8).reshape(rows, 1, law.coins)
            return np.packbits(np.tile(own, (1, CLASSES, 1)), bitorder="little").tobytes()

        return take

    return source


def reused() -> ByteSource:
    return SeedStream(bytes(32)).take


def one_row_for_all() -> ByteSource:
    """The same coins for every row."""
    row = SeedStream(prg.new_seed()).take(CLASSES * SMALL.coins // 8)
    return lambda size: row * (size // len(row))


def biased() -> ByteSource:
    """Ones are a little more frequent: what a party alone would make of its coins."""

    def take(size: int) -> bytes:
        drawn = np.random.default_rng().random(8 * size) < 0.52
        return np.packbits(drawn, bitorder="little").tobytes()

    return take


@pytest.mark.parametrize("fault", [once_for_a_row(SMALL), reused, one_row_for_all])
def test_coins_that_are_not_fresh_for_every_cell_and_row_would_be_found(
    fault: Callable[[], ByteSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summation, "fresh_bytes", fault)
    assert suspicion() < FALSE_ALARM


def test_coins_of_one_biased_party_alone_would_be_found() -> None:
    """The others' bits are what makes them uniform."""
    assert fit(drawn(sources=lambda rank: biased(), zero=True), SMALL) < FALSE_ALARM
    fair = drawn(sources=lambda rank: biased() if rank == 0 else summation.fresh_bytes())
    assert fit(fair, SMALL) > FALSE_ALARM


@pytest.mark.parametrize("law", [CoinLaw(((1, 52),)), CoinLaw(((1, 78),)), CoinLaw(((2, 16),))])
def test_another_law_would_be_found(law: CoinLaw) -> None:
    noise = np.clip(drawn(law), -SMALL.reach, SMALL.reach)
    assert fit(noise, SMALL) < FALSE_ALARM
