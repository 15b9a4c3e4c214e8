"""How large a verified round may be: what is too large is refused by its spec, before anything is
spent, and all that is not is dealt in pieces of bounded memory."""

from __future__ import annotations

import pytest

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.simulation.vote import simulated_spec, upload_bytes
from mpc_vote.verified.bit_conversion import MAX_NUMBERS, BitConversion
from mpc_vote.voting import codec
from mpc_vote.voting.ballots import KNN_COUNT, ONE_HOT
from mpc_vote.voting.limits import MAX_K, MAX_VERIFIED_NUMBERS
from mpc_vote.voting.spec import Spec

SHAPES = {
    "few queries": (2, 8, 10),
    "many queries": (8, 10_000, 10),
    "many agents": (1_000, 40, 10),
    "many classes": (3, 100, 1_000),
    "two classes": (5, 500, 2),
}


def round_of(k: int, shape: str, verified: bool = True) -> Spec:
    agents, queries, classes = SHAPES[shape]
    roster = {f"agent-{number}": k for number in range(agents)}
    return simulated_spec(KNN_COUNT, queries, classes, roster, 40.0, parties=3, verified=verified)


def largest_k(shape: str) -> int:
    """By bisection, from what is too large for any of the shapes but fits a ring."""
    fits, too_large = 1, MAX_K // SHAPES[shape][0]
    while too_large - fits > 1:
        k = (fits + too_large) // 2
        if round_of(k, shape, verified=False).can_be_verified:
            fits = k
        else:
            too_large = k
    return fits


@pytest.mark.parametrize("shape", SHAPES)
def test_one_neighbour_more_than_can_be_verified_is_refused_and_the_way_out_is_told(
    shape: str,
) -> None:
    k = largest_k(shape)
    assert round_of(k, shape).message.verified
    with pytest.raises(VoteError, match=r"verified=False, a smaller k") as refusal:
        round_of(k + 1, shape)
    assert refusal.value.kind is ErrorKind.SPEC_INVALID
    assert not round_of(k + 1, shape, verified=False).message.verified


@pytest.mark.parametrize("shape", SHAPES)
def test_the_dealer_takes_the_plan_of_every_round_that_can_be_verified(shape: str) -> None:
    spec = round_of(largest_k(shape), shape)
    plan = spec.plan()
    assert codec.from_wire(codec.to_wire(plan)) == plan
    dealt = [item.numbers for item in plan if isinstance(item, BitConversion)]
    assert max(dealt) <= MAX_NUMBERS
    assert sum(dealt) == spec.message.queries * spec.summation.numbers
    assert sum(dealt) <= MAX_VERIFIED_NUMBERS


def test_a_pointer_takes_as_many_numbers_as_it_has_values_and_a_coin_one() -> None:
    """Ten classes and none need four bits."""
    spec = round_of(50, "many queries")
    (layout,) = set(spec.layouts)
    assert (layout.pointers, layout.pointer_bits, layout.numbers) == (50, 4, 50 * 16)
    assert spec.summation.numbers == 8 * layout.numbers + 10 * spec.coin_law.coins
    assert spec.share_bytes("agent-0") == 10_000 * 50 * 4 // 8


def test_the_ring_has_room_for_all_votes_and_all_coins_and_no_more() -> None:
    """Sigma 25 has 91 coins, worth 444 units from one end to the other: 200 agents fit 11 bits."""
    roster = {f"agent-{number}": 0 for number in range(200)}
    spec = simulated_spec(ONE_HOT, 500, 10, roster, 25.0, parties=3, verified=True)
    assert spec.total_bound == 200 + 222
    assert (spec.message.ring_bits, spec.message.fraction_bits) == (11, 0)
    assert upload_bytes(spec) <= 350
    dealt = sum(item.correction_bytes for item in spec.plan())
    assert dealt <= 6_000_000
    many = simulated_spec(KNN_COUNT, 8, 10, {"agent-0": 1500, "agent-1": 400}, 25.0, verified=True)
    assert many.total_bound == 1900 + 222
    assert many.message.ring_bits == 14
