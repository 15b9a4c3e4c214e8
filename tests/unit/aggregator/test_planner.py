"""What a request would meet is known before anything is opened: dry runs and rounds agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.coordinator.dry_run import dry_run
from aggregator.coordinator.planner import make_spec
from aggregator.coordinator.roster import Defaults
from mpc_vote.argmax.registry import TABLE
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy.ledger import Budget, Ledger
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.proto.mpcvote.v1 import agent_pb2, common_pb2, label_pb2
from mpc_vote.voting.ballots import KNN_COUNT, ONE_HOT
from mpc_vote.voting.round_plan import RoundPlan

SHAPE = (6,)
QUERIES = np.zeros((40, *SHAPE), dtype=np.float32)
DEFAULTS = Defaults(
    parties=("party-0", "party-1"),
    dealer="dealer",
    engine=TABLE,
    sigma=5.0,
    min_sigma=0.1,
    delta=1e-3,
    quorum_fraction=0.8,
    collusion=1,
    answer_seconds=30,
    min_k=5,
    max_k=100,
)


def can(**more: Any) -> agent_pb2.Capabilities:
    policy = {name: more.pop(name) for name in ("min_sigma", "min_quorum") if name in more}
    offer = {
        "classes": 3,
        "query_dtype": common_pb2.DTYPE_FLOAT32,
        "query_shape": SHAPE,
        "ballots": [KNN_COUNT.code],
        "k": 20,
        **more,
    }
    return agent_pb2.Capabilities(offers=[common_pb2.Offer(**offer)], **policy)


PRESENT = {f"clinic-{place}": can() for place in range(5)}
OTHERS = {
    "models": can(ballots=[ONE_HOT.code]),
    "wide": can(classes=4),
    "coarse": can(query_dtype=common_pb2.DTYPE_UINT8),
    "flat": can(query_shape=[2, 3]),
    "greedy": can(k=500),
    "careful": can(min_sigma=9.0),
    "elsewhere": can(task="other", task_digest=bytes(32)),
}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.db", Budget(None, 20.0, 1e-3)) as opened:
        yield opened


def request(**more: Any) -> label_pb2.PlanRoundRequest:
    plan = label_pb2.LabelPlan(**{"classes": 3, "queries": len(QUERIES), **more})
    return label_pb2.PlanRoundRequest(
        plan=plan, query_dtype=common_pb2.DTYPE_FLOAT32, query_shape=SHAPE
    )


def planned(ledger: Ledger, present: Any = PRESENT, **more: Any) -> RoundPlan:
    answer = dry_run(request(**more), present, DEFAULTS, 0.0, ledger)
    return RoundPlan.from_message(answer)


def test_a_dry_run_tells_what_the_round_will_be(ledger: Ledger) -> None:
    told = planned(ledger, PRESENT | OTHERS)
    plan = label_pb2.LabelPlan(classes=3)
    spec = make_spec(plan, QUERIES, PRESENT | OTHERS, DEFAULTS, 0.0)
    m = spec.message
    assert dict(told.agents) == spec.roster == {f"clinic-{place}": 20 for place in range(5)}
    assert (told.quorum, told.collusion) == (m.quorum, m.collusion)
    assert (told.sigma, told.ballot, told.verified) == (m.sigma, spec.ballot, m.verified)
    assert (told.ring_bits, told.engine) == (m.ring_bits, spec.engine_kind.name)
    assert told.votes == 100


def test_everybody_who_is_left_out_is_told_with_the_reason(ledger: Ledger) -> None:
    left_out = planned(ledger, PRESENT | OTHERS).left_out
    assert list(left_out) == list(OTHERS)
    for agent, reason in {
        "models": "casts no knn_count ballots",
        "wide": "answers for 4 classes",
        "coarse": "takes queries of dtype uint8",
        "flat": "takes queries of shape (2, 3)",
        "greedy": "counts 500 neighbours, and this service takes 5 to 100",
        "careful": "wants sigma of at least 9",
        "elsewhere": "answers tasks only",
    }.items():
        assert reason in left_out[agent]


def test_the_form_of_queries_is_what_most_fitting_agents_take_if_it_is_left_out(
    ledger: Ledger,
) -> None:
    asked = request()
    asked.ClearField("query_dtype")
    asked.ClearField("query_shape")
    many = {f"wide-{place}": can(classes=4, query_shape=[9]) for place in range(20)}
    answer = dry_run(asked, PRESENT | OTHERS | many, DEFAULTS, 0.0, ledger)
    assert tuple(answer.spec.query_shape) == SHAPE
    assert len(answer.spec.roster) == 5


def test_a_dry_run_tells_the_cost_alone_and_after_what_was_spent_and_writes_nothing(
    ledger: Ledger,
) -> None:
    before = planned(ledger)
    assert before.epsilon_instance == before.total_epsilon_instance > 0
    plan = label_pb2.LabelPlan(classes=3)
    spec = make_spec(plan, QUERIES, PRESENT, DEFAULTS, 0.0)
    ledger.charge("first", spec.mechanism)
    after = planned(ledger)
    assert after.epsilon_instance == before.epsilon_instance
    assert after.total_epsilon_instance > before.total_epsilon_instance
    assert len(ledger.spends()) == 1
    ledger.charge("second", spec.mechanism)
    assert ledger.spent(Level.INSTANCE, 1e-3) == after.total_epsilon_instance


def test_a_budget_that_forbids_the_round_is_told(ledger: Ledger) -> None:
    assert planned(ledger, queries=10).over_budget == ""
    assert "instance-level budget forbids it" in planned(ledger, queries=5000).over_budget


@pytest.mark.parametrize("agreement", [1.0, 0.5])
def test_a_request_that_noise_would_drown_is_refused(agreement: float) -> None:
    sigma = 200.0 if agreement == 1.0 else 40.0
    plan = label_pb2.LabelPlan(classes=3, sigma=sigma, agreement=agreement)
    with pytest.raises(VoteError, match="Nobody was asked") as caught:
        make_spec(plan, QUERIES, PRESENT, DEFAULTS, 0.0)
    assert caught.value.kind is ErrorKind.LEAD_DROWNED
    plan.ClearField("agreement")
    assert make_spec(plan, QUERIES, PRESENT, DEFAULTS, 0.0).message.sigma == sigma


def test_a_request_whose_lead_stands_out_is_not_refused() -> None:
    plan = label_pb2.LabelPlan(classes=3, sigma=40.0, agreement=0.9)
    assert make_spec(plan, QUERIES, PRESENT, DEFAULTS, 0.0).message.sigma == 40.0


def test_a_dry_run_warns_of_noise_that_drowns_at_the_agreement_that_is_stated(
    ledger: Ledger,
) -> None:
    assert planned(ledger, sigma=40.0).warnings == ()
    (told,) = planned(ledger, sigma=40.0, agreement=0.5).warnings
    assert "Where 50 % of the votes agree" in told


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"queries": 0}, ErrorKind.QUERIES_EMPTY),
        ({"queries": 10_001}, ErrorKind.QUERIES_TOO_MANY),
        ({"agreement": 1.5}, ErrorKind.AGREEMENT_RANGE),
        ({"classes": 9}, ErrorKind.CLASSES_MISMATCH),
        ({"quorum": 9}, ErrorKind.QUORUM_RANGE),
    ],
)
def test_what_a_request_is_refused_for_a_dry_run_is_too(
    ledger: Ledger, more: dict[str, Any], kind: ErrorKind
) -> None:
    with pytest.raises(VoteError) as caught:
        planned(ledger, **more)
    assert caught.value.kind is kind


@pytest.mark.parametrize("shape", [[], [1] * 100_000])
def test_a_dry_run_bounds_the_shape_of_queries(ledger: Ledger, shape: list[int]) -> None:
    asked = request()
    asked.query_shape[:] = shape
    with pytest.raises(VoteError) as caught:
        dry_run(asked, PRESENT, DEFAULTS, 0.0, ledger)
    assert caught.value.kind is ErrorKind.SPEC_INVALID and len(caught.value.message) < 200


def test_a_dry_run_without_a_plan_is_refused(ledger: Ledger) -> None:
    with pytest.raises(VoteError) as caught:
        dry_run(label_pb2.PlanRoundRequest(), PRESENT, DEFAULTS, 0.0, ledger)
    assert caught.value.kind is ErrorKind.PLAN_MISSING
