"""The forecast is what the vote then does, and its range holds wherever wrong votes go."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpc_vote.privacy.noise import SkellamSampler
from mpc_vote.simulation.vote import simulated_spec, vote
from mpc_vote.voting.ballots import KNN_COUNT, KNN_FREQUENCY, MULTI_LABEL, ONE_HOT, BallotKind
from mpc_vote.voting.forecast import Poll, forecast, win_probability

Labels = npt.NDArray[np.int64]

QUERIES = 10_000
SEEDS = range(1, 5)
"""Four rounds: a standard error of a quarter of a point."""
POINT = 0.01


def test_the_known_vector() -> None:
    assert win_probability([10], 5.0) == pytest.approx(0.9213504, abs=5e-8)


def test_without_a_lead_every_class_is_as_likely() -> None:
    for classes in (2, 10, 1000):
        assert win_probability([0.0], 3.0, [classes - 1]) == pytest.approx(1 / classes, abs=1e-9)


def test_a_lead_far_beyond_the_noise_is_certain_and_one_far_behind_is_lost() -> None:
    assert win_probability([1e9], 1e-3) == pytest.approx(1.0)
    assert win_probability([-1e9], 1e-3) == pytest.approx(0.0)


def test_integer_noise_is_as_the_normal_law_says() -> None:
    """Skellam noise of sigma 5 votes, of 16 units each."""
    unit, sigma, lead = 16, 5.0, 10
    draws = SkellamSampler((sigma * unit) ** 2).sample((400_000, 2))
    won = (draws[:, 0] + lead * unit >= draws[:, 1]).mean()
    assert won == pytest.approx(win_probability([lead], sigma), abs=0.002)


@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=6).filter(lambda parts: sum(parts) > 0.1),
    st.floats(0.3, 1.0),
    st.floats(1.0, 60.0),
)
def test_however_wrong_votes_are_spread_the_range_holds(
    parts: list[float], agreement: float, sigma: float
) -> None:
    classes, agents = len(parts) + 1, 40
    poll = Poll.of(
        ONE_HOT, classes, [0] * agents, sigma=sigma, quorum=agents, collusion=0, verified=False
    )
    wrong = [agents * (1 - agreement) * part / sum(parts) for part in parts]
    right = win_probability([agents * agreement - votes for votes in wrong], sigma)
    found = forecast(poll, agreement)
    assert found.low - 1e-9 <= right <= found.high + 1e-9


SETTINGS = [
    # kind, classes, ks, agreement, rival, sigma, quorum, collusion
    (ONE_HOT, 10, [0] * 20, 0.6, False, 4.0, 20, 0),
    (ONE_HOT, 10, [0] * 20, 0.6, True, 4.0, 16, 1),
    (ONE_HOT, 2, [0] * 10, 0.7, True, 3.0, 8, 1),
    (KNN_COUNT, 10, [20] * 8, 0.55, False, 40.0, 8, 1),
    (KNN_COUNT, 3, [10, 30, 50], 0.5, False, 15.0, 3, 1),
    (KNN_FREQUENCY, 5, [10] * 10, 0.6, True, 2.0, 10, 0),
]


@pytest.mark.parametrize(
    ("kind", "classes", "ks", "agreement", "rival", "sigma", "quorum", "collusion"), SETTINGS
)
def test_the_simulated_vote_is_right_as_often_as_forecast(
    kind: BallotKind,
    classes: int,
    ks: list[int],
    agreement: float,
    rival: bool,
    sigma: float,
    quorum: int,
    collusion: int,
) -> None:
    roster = {f"agent-{place}": k for place, k in enumerate(ks)}
    spec = simulated_spec(kind, QUERIES, classes, roster, sigma, quorum=quorum, collusion=collusion)
    right = np.random.default_rng(0).integers(classes, size=QUERIES)
    ballots, named, cast = {}, 0, 0
    for place, (agent, k) in enumerate(roster.items()):
        if kind.needs_k:
            votes: Labels = _counts(right, classes, k, agreement, rival)
            named += int(votes[np.arange(QUERIES), right].sum())
            cast += int(votes.sum())
        else:
            votes = _names(right, classes, place, len(ks), agreement, rival)
            named += int((votes == right).sum())
            cast += QUERIES
        ballots[agent] = spec.encode(agent, votes)
    labels = np.stack([vote(spec, ballots, seed)[:, 0] for seed in SEEDS])
    found = forecast(Poll.of_spec(spec), named / cast)
    expected = found.low if rival else found.high
    assert (labels == right).mean() == pytest.approx(expected, abs=POINT)


@pytest.mark.parametrize("there", [0, 1])
def test_simulated_attributes_are_right_as_often_as_forecast(there: int) -> None:
    agents, width, sigma = 10, 4, 3.0
    roster = {f"agent-{place}": 0 for place in range(agents)}
    spec = simulated_spec(MULTI_LABEL, QUERIES // width, width, roster, sigma, tau=width)
    ballots = {
        agent: spec.encode(agent, np.full((QUERIES // width, width), float((place < 7) == there)))
        for place, agent in enumerate(roster)
    }
    labels = np.stack([vote(spec, ballots, seed) for seed in SEEDS])
    found = forecast(Poll.of_spec(spec), 0.7)
    assert found.low == pytest.approx(found.high)
    assert (labels == there).mean() == pytest.approx(found.high, abs=POINT)


def test_who_casts_no_vote_on_an_attribute_says_no() -> None:
    poll = Poll.of(MULTI_LABEL, 40, [0] * 100, sigma=10.0, quorum=100, collusion=0, verified=False)
    found = forecast(poll, 0.8, turnout=0.5)
    assert found.low < 0.5 < found.high


def test_noise_that_makes_up_for_colluding_and_absent_agents_is_forecast_too() -> None:
    full = Poll.of(ONE_HOT, 10, [0] * 10, sigma=4.0, quorum=8, collusion=1, verified=False)
    assert full.noise == pytest.approx(4.0 * math.sqrt(10 / 7))
    assert full.votes == 10
    least = Poll.of(
        ONE_HOT, 10, [0] * 10, sigma=4.0, quorum=8, collusion=1, verified=False, participation=0.1
    )
    assert (least.agents, least.votes) == (8, 8)
    assert least.noise == pytest.approx(4.0 * math.sqrt(8 / 7))
    assert forecast(least, 0.8).high < forecast(full, 0.8).high


def test_in_a_verified_round_the_noise_is_sigma_whoever_answers() -> None:
    for part in (1.0, 0.1):
        poll = Poll.of(
            *(ONE_HOT, 10, [0] * 10),
            sigma=4.0,
            quorum=8,
            collusion=0,
            verified=True,
            participation=part,
        )
        assert poll.noise == 4.0


def test_labels_nearer_to_guesses_than_to_the_truth_are_drowned() -> None:
    def poll(sigma: float) -> Poll:
        return Poll.of(KNN_COUNT, 10, [50] * 3, sigma=sigma, quorum=3, collusion=1, verified=False)

    assert not forecast(poll(15.0), 1.0).doubtful
    assert forecast(poll(80.0), 1.0).drowned
    split = forecast(poll(10.0), 0.5)
    assert split.doubtful and not split.drowned


@pytest.mark.parametrize("agreement", [-0.1, 1.1, math.nan])
def test_an_agreement_that_is_no_part_is_refused(agreement: float) -> None:
    poll = Poll.of(ONE_HOT, 10, [0] * 10, sigma=4.0, quorum=8, collusion=1, verified=False)
    with pytest.raises(ValueError, match="agreement must be 0 to 1"):
        forecast(poll, agreement)


def _counts(right: Labels, classes: int, k: int, agreement: float, rival: bool) -> Labels:
    """k neighbours on each query: so many of the right class, the rest for one rival or spread."""
    named = round(agreement * k)
    counts = np.zeros((len(right), classes), dtype=np.int64)
    rows = np.arange(len(right))
    counts[rows, right] = named
    for vote_ in range(k - named):
        shift = 1 if rival else 1 + vote_ % (classes - 1)
        counts[rows, (right + shift) % classes] += 1
    return counts


def _names(
    right: Labels, classes: int, place: int, agents: int, agreement: float, rival: bool
) -> Labels:
    named = round(agreement * agents)
    if place < named:
        return right
    shift = 1 if rival else 1 + (place - named) % (classes - 1)
    return (right + shift) % classes
