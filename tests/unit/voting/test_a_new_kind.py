"""A kind of ballot is a class and its registration: everything else takes it as it is."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from agent_node.policy import Policy
from agent_node.settings import AgentSettings
from aggregator.coordinator.planner import make_spec
from aggregator.coordinator.roster import Defaults
from mpc_vote import cli
from mpc_vote.app.config import ConfigError, load
from mpc_vote.argmax.registry import TABLE
from mpc_vote.cli.common import kind_name
from mpc_vote.cli.label import LabelSettings
from mpc_vote.client import Plan
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy.ledger import Ledger, LedgerView
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.proto.mpcvote.v1 import agent_pb2, common_pb2
from mpc_vote.simulation.vote import simulated_spec, totals, vote
from mpc_vote.transport import tensors
from mpc_vote.voting import costing
from mpc_vote.voting import spec as specs
from mpc_vote.voting.ballots import BALLOTS, ONE_HOT, BallotCode, BallotKind, IntArray
from mpc_vote.voting.ballots.kind import unit_of
from mpc_vote.voting.charge import charge
from mpc_vote.voting.costing import Noise
from mpc_vote.voting.spec import Spec

QUERIES, CLASSES, TAU, QUIET = 40, 5, 3, 1e-5
NAMES = [f"agent-{number}" for number in range(6)]


class Approval(BallotKind):
    """A vote for each class that an agent approves of, the first `tau` where there are more.

    A voter says yes or no to each class, (queries, classes).
    """

    name = "approval"
    code = BallotCode(1_077)
    about = "a vote of each agent for all classes that it approves of"
    needs_tau: ClassVar[bool] = True

    def encode(
        self, votes: npt.ArrayLike, *, classes: int, fraction_bits: int, k: int = 0, tau: int = 0
    ) -> IntArray:
        yes = np.asarray(votes, dtype=bool)
        assert yes.shape[1] == classes
        kept: IntArray = np.where(yes & (yes.cumsum(axis=1) <= tau), unit_of(fraction_bits), 0)
        return kept

    def agent_sensitivity(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> Sensitivity:
        assert tau is not None
        return Sensitivity.of_cells(tau, unit_of(fraction_bits))

    def instance_sensitivity(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> Sensitivity:
        assert tau is not None
        return Sensitivity.of_cells(2 * tau, unit_of(fraction_bits))

    def max_entry(
        self, *, fraction_bits: int, ks: Sequence[int] = (), tau: int | None = None
    ) -> int:
        return unit_of(fraction_bits)


@pytest.fixture
def approval() -> Iterator[Approval]:
    kind = Approval()
    BALLOTS.register(kind)
    specs._parsed.cache_clear()
    try:
        yield kind
    finally:
        BALLOTS.unregister(kind)
        specs._parsed.cache_clear()


def made(kind: BallotKind, sigma: float = QUIET) -> Spec:
    return simulated_spec(kind, QUERIES, CLASSES, dict.fromkeys(NAMES, 0), sigma, tau=TAU)


def approvals() -> dict[str, npt.NDArray[np.bool_]]:
    rng = np.random.default_rng(3)
    return {name: rng.random((QUERIES, CLASSES)) < 0.6 for name in NAMES}


def test_a_whole_vote(approval: Approval) -> None:
    spec, said = made(approval), approvals()
    assert max(yes.sum(axis=1).max() for yes in said.values()) > TAU, "somebody names too many"
    cast = {name: spec.encode(name, yes) for name, yes in said.items()}
    assert max(ballot.sum(axis=1).max() for ballot in cast.values()) == TAU << 4
    added = sum(cast.values())
    assert np.array_equal(totals(spec, cast), added)
    assert np.array_equal(vote(spec, cast, 0), np.argmax(added, axis=1)[:, None])


def test_noise_has_a_say(approval: Approval) -> None:
    spec, said = made(approval, 20.0), approvals()
    cast = {name: spec.encode(name, yes) for name, yes in said.items()}
    quiet = np.argmax(sum(cast.values()), axis=1)
    assert 0 < np.mean(vote(spec, cast, 0)[:, 0] != quiet) < 1


def test_a_spec_comes_through_the_wire(approval: Approval) -> None:
    spec = made(approval)
    again = Spec.parse(spec.wire)
    assert again.ballot is approval
    assert (again.message, again.digest) == (spec.message, spec.digest)
    assert (again.width, again.rows, again.row_classes) == (1, QUERIES, CLASSES)
    assert set(again.roster.values()) == {0} and not again.can_be_verified


@pytest.mark.parametrize("tau", [0, CLASSES + 1])
def test_a_spec_without_a_fitting_tau_is_refused(approval: Approval, tau: int) -> None:
    message = made(approval).message
    message.tau = tau
    with pytest.raises(VoteError, match="tau must be 1 to the number of classes"):
        Spec.seal(message)


def test_it_is_said_what_can_be_verified_instead(approval: Approval) -> None:
    with pytest.raises(VoteError, match=r"approval ballots can't be verified: use one_hot ballots"):
        simulated_spec(approval, 1, 2, {"ann": 0}, 1.0, tau=1, verified=True)


def test_a_spec_of_an_unknown_kind_is_refused_and_its_message_can_be_read() -> None:
    message = made(ONE_HOT).message
    message.ballot = Approval.code
    with pytest.raises(VoteError, match="the ballot kind is unknown"):
        Spec.seal(message)
    assert kind_name(message.ballot) == "kind 1077"


def test_it_is_charged(approval: Approval, tmp_path: Path) -> None:
    spec = made(approval, 9.0)
    variance = (9.0 * 16) ** 2
    expected = charge(
        approval, queries=QUERIES, variance=variance, fraction_bits=4, tau=TAU, ks=[0]
    )
    assert spec.mechanism.sensitivity(Level.AGENT) == Sensitivity.of_cells(TAU, 16)
    assert spec.mechanism.sensitivity(Level.INSTANCE) == Sensitivity.of_cells(2 * TAU, 16)
    assert spec.mechanism.sensitivity(Level.AGENT) == expected.agent
    assert spec.mechanism.variance == pytest.approx(variance)
    plan = costing.CostPlan(approval, Noise.SKELLAM, 9.0, QUERIES, 1e-3, tau=TAU)
    assert plan.mechanism.sensitivity(Level.INSTANCE) == expected.instance
    settings = load(AgentSettings, AGENT)
    with Ledger(tmp_path / "ledger.db", None) as ledger:
        Policy("agent-0", settings, ledger).charge(spec)
    with LedgerView(tmp_path / "ledger.db") as view:
        (spend,) = view.spends()
    assert (spend.mechanism, spend.note) == (spec.mechanism, "approval, sigma 9")


def test_a_plan_needs_tau(approval: Approval) -> None:
    with pytest.raises(costing.PlanError, match="approval ballots need tau"):
        costing.CostPlan(approval, Noise.SKELLAM, 9.0, QUERIES, 1e-3)


LABEL = ["--certs=c", "--queries=q", "--out=o", "--classes=3"]
AGENT = ["--certs=c", "--data=x", "--data-dir=d", "--coordinator=h:1", "--parties=a=h:1,b=h:2"]


def test_it_can_be_chosen(approval: Approval, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["label", "--help"])
    assert "--ballot {one_hot,knn_frequency,knn_count,multi_label,approval}" in " ".join(
        capsys.readouterr().out.split()
    )
    assert load(LabelSettings, [*LABEL, "--ballot=approval"]).ballot is approval
    assert load(AgentSettings, [*AGENT, "--ballots=one_hot,approval"]).ballots == [
        ONE_HOT,
        approval,
    ]


def test_it_can_not_be_chosen_once_it_is_gone() -> None:
    assert "approval" not in BALLOTS.names()
    with pytest.raises(ConfigError, match="choose one of one_hot"):
        load(LabelSettings, [*LABEL, "--ballot=approval"])


def test_a_coordinator_makes_such_rounds_of_agents_that_cast_them(approval: Approval) -> None:
    queries = np.zeros((QUERIES, 7), np.float32)
    offer = common_pb2.Offer(
        classes=CLASSES,
        query_dtype=tensors.dtype_code(queries.dtype),
        query_shape=[7],
        ballots=[approval.code],
    )
    can = agent_pb2.Capabilities(offers=[offer])
    present, plan = dict.fromkeys(NAMES, can), Plan(classes=CLASSES, ballot=approval, tau=TAU)
    defaults = Defaults(("p", "q"), "dealer", TABLE, 0.5, 0.0, 1e-3, 0.8, 1, 60, 1, 1_000)
    spec = make_spec(plan.message(), queries, present, defaults, 0.001)
    assert spec.ballot is approval and list(spec.roster) == NAMES
    assert not spec.message.verified and spec.engine.name.startswith(TABLE.name)
    plan = Plan(classes=CLASSES, ballot=approval, tau=CLASSES + 1)
    with pytest.raises(VoteError) as caught:
        make_spec(plan.message(), queries, present, defaults, 0.001)
    assert caught.value.kind is ErrorKind.TAU_RANGE


def test_a_copy_is_the_kind_itself(approval: Approval) -> None:
    for kind in BALLOTS:
        assert copy.deepcopy(kind) is copy.copy(kind) is pickle.loads(pickle.dumps(kind)) is kind
    assert approval in BALLOTS


def test_two_kinds_do_not_share_a_name_or_a_code(approval: Approval) -> None:
    with pytest.raises(ValueError, match="is taken"):
        BALLOTS.register(Approval())
    assert BALLOTS.by_name("approval") is BALLOTS.by_code(approval.code) is approval
