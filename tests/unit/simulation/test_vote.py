"""The simulated vote is the service's vote: its totals, its ties, its noise, its refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpc_vote.privacy.noise import SkellamSampler
from mpc_vote.simulation.vote import count, seeded, simulated_spec, vote
from mpc_vote.voting.ballots import KNN_COUNT, MULTI_LABEL, ONE_HOT, BallotKind
from tests.unit.verified.plain import noise_of

QUIET = 1e-5


def roster(agents: int, k: int = 0) -> dict[str, int]:
    return {f"agent-{n}": k for n in range(agents)}


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(2, 11), st.integers(2, 4), st.integers(0, 2**32))
def test_without_noise_it_is_the_plain_argmax_with_ties_to_the_lower_class(
    agents: int, classes: int, parties: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    spec = simulated_spec(ONE_HOT, 30, classes, roster(agents), QUIET, parties=parties)
    cast = {name: spec.encode(name, rng.integers(classes, size=30)) for name in spec.roster}
    want = np.argmax(sum(cast.values()), axis=1)
    assert np.array_equal(vote(spec, cast, 0)[:, 0], want)


def test_an_attribute_wants_more_than_half_of_the_agents() -> None:
    spec = simulated_spec(MULTI_LABEL, 5, 1, roster(4), QUIET, tau=1)
    yes = np.arange(5)
    cast = {f"agent-{n}": np.where(n < yes, 16, 0).reshape(5, 1) for n in range(4)}
    assert vote(spec, cast, 0).tolist() == [[0], [0], [0], [1], [1]]


@settings(max_examples=15)
@given(
    st.sampled_from([ONE_HOT, KNN_COUNT, MULTI_LABEL]),
    st.integers(2, 6),
    st.integers(2, 12),
    st.integers(2, 4),
    st.integers(0, 2**32),
)
def test_the_labels_of_a_verified_round_are_those_of_votes_and_coins(
    kind: BallotKind, agents: int, classes: int, parties: int, seed: int
) -> None:
    """The coins are the exclusive or of what the seed gives each party."""
    rng = np.random.default_rng(seed)
    known = {name: 3 + n for n, name in enumerate(roster(agents))}
    cast = {
        name: {
            ONE_HOT: lambda k: rng.multinomial(1, [1 / classes] * classes, size=24),
            KNN_COUNT: lambda k: rng.multinomial(k, [1 / classes] * classes, size=24),
            MULTI_LABEL: lambda k: rng.integers(0, 2, (24, classes)),
        }[kind](k)
        for name, k in known.items()
    }
    spec = simulated_spec(
        kind, 24, classes, known, 5.0, tau=classes, parties=parties, verified=True
    )
    coins = spec.cells * spec.coin_law.coins
    drawn = [
        np.frombuffer(seeded(seed, party)((coins + 7) // 8), np.uint8) for party in spec.parties
    ]
    tossed = np.unpackbits(np.bitwise_xor.reduce(drawn), bitorder="little", count=coins)
    totals = sum(cast.values()) + noise_of(spec.coin_law, tossed, classes)
    want = totals > agents // 2 if kind is MULTI_LABEL else totals.argmax(axis=1)[:, None]
    assert np.array_equal(vote(spec, cast, seed), want)


def test_noise_is_each_agents_own_and_follows_the_seed() -> None:
    spec = simulated_spec(ONE_HOT, 200, 3, roster(5), 20.0)
    nothing = {name: np.zeros((200, 3), dtype=np.int64) for name in spec.roster}
    first, again, other = (vote(spec, nothing, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    sampler = SkellamSampler(spec.agent_variance)
    drawn = sum(sampler.sample((200, 3), seeded(1, name)) for name in spec.roster)
    assert np.array_equal(first[:, 0], np.argmax(drawn, axis=1))
    assert np.std(drawn) == pytest.approx(20.0 * 16, rel=0.1)


def test_too_few_ballots_and_impossible_rounds_are_refused() -> None:
    spec = simulated_spec(ONE_HOT, 2, 2, roster(3), 1.0, quorum=3)
    with pytest.raises(ValueError, match="fewer than the quorum"):
        count(spec, [("agent-0", np.zeros((2, 2), dtype=np.int64))])
    with pytest.raises(ValueError, match="collusion bound"):
        simulated_spec(ONE_HOT, 2, 2, roster(3), 1.0, collusion=3)
