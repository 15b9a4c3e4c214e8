"""Plans: the same account as the service's, what coalitions leave, and the way back."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpc_vote.privacy import GaussianVote, Level
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.simulation import published
from mpc_vote.voting.ballots import (
    BALLOTS,
    KNN_COUNT,
    KNN_FREQUENCY,
    MULTI_LABEL,
    ONE_HOT,
    BallotKind,
)
from mpc_vote.voting.costing import (
    MAX_PLANNED_QUERIES,
    MIN_SIGMA,
    Accountant,
    CostPlan,
    Noise,
    PlanError,
    Roster,
    Solved,
    coalition,
    loss,
    losses,
    solve_queries,
    solve_sigma,
)
from mpc_vote.voting.spec import Spec

FREQUENCY, COUNT = KNN_FREQUENCY, KNN_COUNT


def gaussian(
    ballot: BallotKind = ONE_HOT,
    *,
    sigma: float = 25.0,
    queries: int = 500,
    delta: float = 1e-3,
    ks: tuple[int, ...] = (),
    tau: int | None = None,
    roster: Roster | None = None,
) -> CostPlan:
    return CostPlan(ballot, Noise.GAUSSIAN, sigma, queries, delta, ks, tau, roster)


def skellam(plan: CostPlan) -> CostPlan:
    return replace(plan, noise=Noise.SKELLAM)


@pytest.mark.parametrize("ballot", list(BALLOTS))
def test_a_skellam_plan_is_accounted_as_the_service_charges_it(ballot: BallotKind) -> None:
    ks = (3, 7, 20) if ballot.needs_k else ()
    tau = 4 if ballot is MULTI_LABEL else None
    message = common_pb2.RoundSpec(
        queries=60,
        ballot=ballot.code,
        fraction_bits=ballot.default_fraction_bits(list(ks)),
        sigma=7.3,
        roster=[common_pb2.RosterEntry(agent=f"a{i}", k=k) for i, k in enumerate(ks or (0, 0, 0))],
        quorum=3,
        collusion=1,
        tau=tau or 0,
    )
    plan = CostPlan(ballot, Noise.SKELLAM, 7.3, 60, 1e-3, ks, tau, Roster(3, 3, 1))
    assert plan.mechanism == Spec(b"", message).mechanism


@pytest.mark.parametrize(
    ("plan", "agent", "instance"),
    [
        (gaussian(), 1, 2),
        (gaussian(MULTI_LABEL, tau=4), 4, 8),
        (gaussian(FREQUENCY, ks=(65,)), 1, Fraction(2, 65**2)),
        (gaussian(FREQUENCY, ks=(9, 65)), 1, Fraction(2, 81)),
        (gaussian(COUNT, ks=(9, 65)), 65**2, 2),
    ],
)
def test_ideal_votes_move_by_what_is_proved(
    plan: CostPlan, agent: int | Fraction, instance: int | Fraction
) -> None:
    assert plan.moved(Level.AGENT) == agent
    assert plan.moved(Level.INSTANCE) == instance
    assert plan.mechanism.variance == plan.sigma**2 * plan.unit**2
    assert skellam(plan).moved(Level.AGENT) == agent
    assert instance <= skellam(plan).moved(Level.INSTANCE) <= instance * Fraction(11, 10)


def test_half_of_the_agents_colluding_with_noise_not_made_up_for() -> None:
    row = coalition(gaussian(roster=(roster := Roster(200, 200))), roster, 50)
    assert row.agents == 100
    assert row.sigma == pytest.approx(25 / math.sqrt(2))
    assert row.losses and row.losses[Level.AGENT].exact == pytest.approx(4.20775, abs=6e-6)


@pytest.mark.parametrize("noise", [Noise.SKELLAM, Noise.GAUSSIAN])
def test_the_collusion_bound_is_made_up_for_and_no_more(noise: Noise) -> None:
    plan = replace(gaussian(roster=Roster(20, 16, 10)), noise=noise)
    sigmas = [
        math.sqrt(left.variance) / plan.unit if (left := plan.against(agents)) else 0.0
        for agents in (0, 10, 12, 16, 20)
    ]
    assert sigmas == pytest.approx(
        [25 * math.sqrt(16 / 6), 25, 25 * math.sqrt(4 / 6), 0, 0], rel=1e-12
    )
    assert plan.mechanism == plan.against(10)


def test_agents_know_nothing_of_what_the_committee_draws() -> None:
    """So a plan with its coins has no collusion bound, and no noise beyond sigma."""
    plan = replace(gaussian(roster=Roster(20, 16)), noise=Noise.COINS)
    assert plan.mechanism.variance == 625 and plan.unit == 1
    assert plan.mechanism == replace(plan, roster=None).mechanism
    with pytest.raises(PlanError, match="no collusion bound"):
        replace(plan, roster=Roster(20, 16, 1))
    with pytest.raises(PlanError, match="can't be verified"):
        replace(plan, ballot=KNN_FREQUENCY, ks=(5,))
    with pytest.raises(PlanError, match=r"sigma must be 0\.05 to 20000 votes"):
        replace(plan, sigma=20_001.0)


def test_what_coalitions_of_each_size_leave() -> None:
    plan = gaussian(roster=(roster := Roster(20, 16, 10)))
    found = {part: coalition(plan, roster, part) for part in (0, 10, 50, 60, 80)}
    assert [row.agents for row in found.values()] == [0, 2, 10, 12, 16]
    headline = losses(plan)[Level.AGENT].tight
    tights = [row.losses[Level.AGENT].tight for row in found.values() if row.losses]
    assert tights == sorted(tights)
    assert tights[1] < headline < tights[3]
    assert tights[2] == headline
    assert found[80].losses is None and found[80].sigma == 0


def test_part_of_an_agent_is_a_whole_colluder() -> None:
    roster = Roster(7, 7)
    assert [coalition(gaussian(roster=roster), roster, part).agents for part in (0, 10, 50)] == [
        0,
        1,
        4,
    ]


@pytest.mark.parametrize(
    ("level", "accountant", "target"),
    [
        (Level.AGENT, Accountant.SIMPLE, 2.0),
        (Level.AGENT, Accountant.TIGHT, 3.08932),
        (Level.INSTANCE, Accountant.TIGHT, 0.3),
        (Level.AGENT, Accountant.EXACT, 2.73541),
        (Level.INSTANCE, Accountant.EXACT, 8.0),
    ],
)
@pytest.mark.parametrize("noise", list(Noise))
def test_solving_finds_the_last_that_meets_the_target(
    noise: Noise, level: Level, accountant: Accountant, target: float
) -> None:
    plan = replace(gaussian(), noise=noise)
    least = solve_sigma(replace(plan, sigma=1.0), target, level, accountant)
    check(least, target, level, accountant)
    step = float(f"1e{math.floor(math.log10(least.plan.sigma)) - 3}")
    assert least.plan.sigma - least.beyond.sigma == pytest.approx(step)
    most = solve_queries(replace(plan, queries=1), target, level, accountant)
    check(most, target, level, accountant)
    assert most.beyond.queries == most.plan.queries + 1


def check(solved: Solved, target: float, level: Level, accountant: Accountant) -> None:
    assert loss(solved.plan, level, accountant) == solved.epsilon <= target
    assert loss(solved.beyond, level, accountant) == solved.epsilon_beyond > target


def test_solving_recovers_the_known_vector() -> None:
    known = 3.0893235
    assert solve_queries(gaussian(queries=1), known, Level.AGENT, Accountant.TIGHT).plan == (
        gaussian()
    )
    assert solve_sigma(gaussian(sigma=1), known, Level.AGENT, Accountant.TIGHT).plan == gaussian()


@settings(max_examples=30)
@given(
    st.sampled_from(list(Noise)),
    st.floats(0.01, 20),
    st.integers(1, 10_000),
    st.floats(1, 1000),
    st.sampled_from(list(Level)),
    st.sampled_from([Accountant.SIMPLE, Accountant.TIGHT]),
)
def test_every_answer_meets_its_target_and_the_next_does_not(
    noise: Noise, target: float, queries: int, sigma: float, level: Level, accountant: Accountant
) -> None:
    plan = CostPlan(ONE_HOT, noise, sigma, queries, 1e-5)
    check(solve_sigma(plan, target, level, accountant), target, level, accountant)
    try:
        most = solve_queries(plan, target, level, accountant)
    except PlanError:
        assert loss(replace(plan, queries=1), level, accountant) > target
    else:
        check(most, target, level, accountant)


def test_what_has_no_answer_says_why() -> None:
    with pytest.raises(PlanError, match=r"a single query costs epsilon .* raise sigma"):
        solve_queries(gaussian(sigma=MIN_SIGMA), 1.0, Level.AGENT, Accountant.TIGHT)
    with pytest.raises(PlanError, match=f"not reached with {MAX_PLANNED_QUERIES} queries"):
        solve_queries(gaussian(sigma=1e9), 1.0, Level.AGENT, Accountant.TIGHT)
    with pytest.raises(PlanError, match="met with any noise"):
        solve_sigma(gaussian(queries=1), 1e6, Level.AGENT, Accountant.TIGHT)
    with pytest.raises(PlanError, match="ask fewer queries"):
        solve_sigma(gaussian(queries=10**9), 1e-12, Level.AGENT, Accountant.SIMPLE)
    with pytest.raises(PlanError, match=r"there is no exact epsilon: .*shape of the worst move"):
        spread = skellam(gaussian(COUNT, ks=(9,)))
        solve_sigma(spread, 1.0, Level.AGENT, Accountant.EXACT)


def test_no_time_is_lost_on_plans_that_protect_nothing() -> None:
    for level, found in losses(skellam(gaussian(queries=MAX_PLANNED_QUERIES))).items():
        assert found.exact is None
        assert found.tight > 10_000
        assert "nothing is protected" in found.how
        assert losses(gaussian(queries=MAX_PLANNED_QUERIES))[level].exact


def test_noise_that_no_agent_can_draw_is_objected_to() -> None:
    few = CostPlan(FREQUENCY, Noise.SKELLAM, 35, 657, 1e-4, (65,), None, Roster(5, 5))
    assert "at most 20000 can be drawn" in few.objections[0]
    assert not replace(few, roster=Roster(50, 50)).objections
    assert not replace(few, noise=Noise.GAUSSIAN).objections
    assert "at most 4096 agents" in gaussian(roster=Roster(5000, 5000)).objections[0]


def test_the_papers_formula_is_its_theorem_at_the_best_order() -> None:
    assert published.formula(1, 500, 25, 1e-3) == pytest.approx(3.72452, abs=6e-6)
    assert published.formula(4, 600, 50, 1e-3) == pytest.approx(4.12183, abs=6e-6)


def test_rows_cost_what_their_settings_cost() -> None:
    found = {checked.row.name: checked for checked in map(published.check, published.VOTES)}
    clipart = found["kNN-DPFL, Clipart"]
    assert clipart.row.ks == (79, 113, 175, 164, 65)
    assert clipart.ours and clipart.ours.exact == pytest.approx(0.03373, abs=6e-6)
    assert clipart.stated == pytest.approx(
        657 / (65 * 35**2) + 2 * math.sqrt(657 / (65 * 35**2) * math.log(1e4))
    )
    assert not any(checked.derived for checked in found.values())
    assert [name for name, checked in found.items() if checked.match] == [
        "kNN-DPFL, ResNet50, Webcam",
        "kNN-DPFL, ResNet50, DSLR",
        "kNN-DPFL, Clipart",
    ]
    assert all(checked.holds for checked in found.values() if checked.ours)
    mnist = found["AE-DPFL, MNIST"]
    assert "sigma is not given" in mnist.verdict
    assert published.formula(1, 3000, mnist.sigma_needed, 1e-3) == pytest.approx(4.3)


def test_a_row_that_its_formula_gives_is_derived() -> None:
    row = published.VoteRow(published.TABLE_1, "made up", 3.7, 25, 500)
    checked = published.check(row)
    assert checked.derived
    assert checked.verdict == "derived from its formula"
    assert checked.match is not None
    false = published.check(replace(row, reported=2.7))
    assert false.holds is False


def test_one_round_of_the_baseline_is_exact() -> None:
    from dp_accounting.pld import privacy_loss_distribution

    exact = privacy_loss_distribution.from_gaussian_mechanism(
        0.06, sampling_prob=0.05, value_discretization_interval=0.01
    ).get_epsilon_for_delta(1e-3)
    assert published.one_round_of_fedavg(0.05, 1e-3) == pytest.approx(exact, rel=1e-6)


def test_without_collusion_ideal_noise_does_not_depend_on_the_roster() -> None:
    assert gaussian(roster=Roster(9, 6)).mechanism == gaussian().mechanism
    assert isinstance(gaussian().mechanism, GaussianVote)
