"""What an agent insists on: it refuses by itself, and a coordinator that knows asks it for less."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_node.policy import Policy, announced
from agent_node.serving import Serving
from agent_node.settings import AgentSettings
from agent_node.voting import prepare
from aggregator.coordinator.planner import make_spec
from aggregator.coordinator.roster import Defaults
from aggregator.coordinator.settings import CoordinatorSettings
from mpc_vote.app import config
from mpc_vote.app.config import ConfigError
from mpc_vote.client import Plan
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import save_part
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy.charging import charged_epsilon
from mpc_vote.privacy.ledger import Ledger
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.proto.mpcvote.v1 import agent_pb2, common_pb2
from mpc_vote.voting.ballots import BALLOTS, KNN_COUNT, KNN_FREQUENCY, BallotKind
from mpc_vote.voting.spec import Spec
from tests.system.service.support import refused

CLASSES = 3
PARTIES = "--parties=party-0=h:1,party-1=h:1"
QUERIES = np.ones((4, 2), np.float32)


def agent(*flags: str) -> AgentSettings:
    required = ("--certs=x", "--data=x", "--data-dir=x", "--coordinator=h:1", PARTIES)
    return config.load(AgentSettings, [*required, *flags])


OFFER = common_pb2.Offer(
    classes=CLASSES,
    query_dtype=common_pb2.DTYPE_FLOAT32,
    query_shape=[2],
    ballots=[common_pb2.BALLOT_KIND_KNN_COUNT, common_pb2.BALLOT_KIND_KNN_FREQUENCY],
    k=5,
)


def capabilities(settings: AgentSettings) -> agent_pb2.Capabilities:
    told = announced(settings)
    told.offers.append(OFFER)
    return told


def admitted(agents: Mapping[str, AgentSettings], **plan: Any) -> Spec:
    """The spec of a request, by a coordinator with its own defaults."""
    return spec_for({name: capabilities(settings) for name, settings in agents.items()}, **plan)


def spec_for(present: Mapping[str, agent_pb2.Capabilities], **plan: Any) -> Spec:
    given = config.load(CoordinatorSettings, ["--certs=x", "--data-dir=x", PARTIES])
    defaults = Defaults(
        parties=tuple(given.parties),
        dealer=given.dealer_name,
        engine=given.engine,
        sigma=given.sigma,
        min_sigma=given.min_sigma,
        delta=given.delta,
        quorum_fraction=given.quorum_fraction,
        collusion=given.collusion,
        answer_seconds=given.answer_seconds,
        min_k=given.min_k,
        max_k=given.max_k,
    )
    message = Plan(classes=CLASSES, agreement=None, **plan).message()
    return make_spec(message, QUERIES, present, defaults, 0.001)


def answer(name: str, settings: AgentSettings, spec: Spec, folder: Path) -> str:
    """What an agent's own policy says of a spec: nothing, or why not."""
    nobody: Any = None
    with Ledger(folder / "ledger.db", None) as ledger:
        try:
            Policy(name, settings, ledger).check(spec, Serving(OFFER, nobody, "knn"))
        except VoteError as error:
            assert error.kind is ErrorKind.POLICY_REFUSED
            return error.message
    return ""


def alike(count: int, *flags: str) -> dict[str, AgentSettings]:
    return {f"agent-{number}": agent(*flags) for number in range(count)}


@pytest.mark.parametrize("count", [3, 4, 5, 20])
def test_a_plain_request_suits_agents_that_are_told_nothing(count: int, tmp_path: Path) -> None:
    agents = alike(count)
    for verified in (True, False):
        spec = admitted(agents, verified=verified)
        assert list(spec.roster) == list(agents)
        assert spec.message.quorum >= 3 and spec.message.collusion == (0 if verified else 1)
        assert answer("agent-0", agents["agent-0"], spec, tmp_path) == ""


@pytest.mark.parametrize(
    ("count", "plan", "why"),
    [
        (2, {}, "wants a quorum of at least 3"),
        (5, {"quorum": 2}, "wants a quorum of at least 3"),
        (5, {"collusion": 0}, "wants a collusion bound of at least 1 (its --min-collusion)"),
    ],
)
def test_agents_that_are_told_nothing_trust_no_single_other(
    count: int, plan: dict[str, int], why: str, tmp_path: Path
) -> None:
    """One colluding agent must not take away noise that the ledger counts on, where agents add
    it."""
    plan = {**plan, "verified": False}
    quorum = plan.get("quorum") or math.ceil(0.8 * count)
    with refused(ErrorKind.AGENTS_UNWILLING, f"0 for a quorum of {quorum}", f"agent-0 {why}"):
        admitted(alike(count), **plan)
    trusting = alike(count, "--min-quorum=1", "--min-collusion=0")
    spec = admitted(trusting, **plan)
    assert answer("agent-0", trusting["agent-0"], spec, tmp_path) == ""
    assert answer("agent-0", agent(), spec, tmp_path), "whatever the coordinator says"


ASKED = {True: "verified", False: "unverified"}


@pytest.mark.parametrize("verified", [True, False])
def test_an_agent_insists_on_verified_or_unverified_rounds(verified: bool, tmp_path: Path) -> None:
    other = ASKED[not verified]
    agents = {**alike(3), "strict": agent(f"--rounds={other}")}
    spec = admitted(agents, verified=verified)
    assert list(spec.roster) == ["agent-0", "agent-1", "agent-2"]
    assert "strict" in admitted(agents, verified=not verified).roster
    # By itself, if the coordinator puts it on the roster all the same.
    spec = admitted({**alike(3), "strict": agent()}, verified=verified)
    assert f"answers {other} rounds only" in answer("strict", agents["strict"], spec, tmp_path)
    assert answer("strict", agent(f"--rounds={ASKED[verified]}"), spec, tmp_path) == ""
    assert answer("strict", agent("--rounds=any"), spec, tmp_path) == ""
    with refused(ErrorKind.AGENTS_UNWILLING, f"agent-0 answers {other} rounds only"):
        admitted(alike(3, f"--rounds={other}"), verified=verified)


def test_a_request_that_leaves_it_open_leaves_out_who_insists_on_the_other_kind() -> None:
    """By default, ballots are verified that can be."""
    agents = {**alike(3), "bold": agent("--rounds=unverified"), "shy": agent("--rounds=verified")}
    spec = admitted(agents, ballot=KNN_COUNT)
    assert spec.message.verified
    assert list(spec.roster) == ["agent-0", "agent-1", "agent-2", "shy"]
    spec = admitted(agents, ballot=KNN_FREQUENCY)
    assert not spec.message.verified
    assert list(spec.roster) == ["agent-0", "agent-1", "agent-2", "bold"]


def test_an_agent_counts_on_no_more_honest_agents_than_it_knows_of(tmp_path: Path) -> None:
    """Else whoever can invent agents makes its part of the noise as small as it likes; the
    committee's noise counts on none."""
    wary = agent("--max-honest=3")
    agents = {**alike(9), "wary": wary}
    spec = admitted(agents, quorum=9, collusion=1, verified=False)
    assert "wary" not in spec.roster
    assert "wary" in admitted(agents, quorum=9, collusion=6, verified=False).roster
    spec = admitted(agents, quorum=9, verified=True)
    assert answer("wary", wary, spec, tmp_path) == ""
    spec = admitted({**agents, "wary": agent()}, quorum=9, collusion=1, verified=False)
    assert "counts on 8 honest agents, the most is 3" in answer("wary", wary, spec, tmp_path)


def liar(**says: Any) -> agent_pb2.Capabilities:
    """An agent that announces what it likes."""
    told = capabilities(agent())
    for name, value in says.items():
        about: Any = told.offers[0] if name in ("ballots", "k") else told
        about.ClearField(name)
        about.MergeFrom(type(about)(**{name: value}))
    return told


@pytest.mark.parametrize("others", [KNN_COUNT, KNN_FREQUENCY])
@pytest.mark.parametrize("kind", list(BALLOTS))
def test_no_single_agent_chooses_the_kind_of_ballot(others: BallotKind, kind: BallotKind) -> None:
    """Else it would be on a roster of its own, and choose every label."""
    honest = {f"agent-{number}": liar(ballots=[others.code]) for number in range(3)}
    spec = spec_for({**honest, "mallory": liar(ballots=[kind.code], min_quorum=1)})
    assert spec.ballot is others
    assert set(honest) <= set(spec.roster)


def test_no_single_agent_makes_counts_frequencies_which_are_not_verified() -> None:
    present = {f"agent-{number}": capabilities(agent()) for number in range(3)}
    frequency = common_pb2.BALLOT_KIND_KNN_FREQUENCY
    assert spec_for({**present, "mallory": liar(ballots=[frequency])}).message.verified


def test_an_agent_that_would_refuse_every_round_blocks_none() -> None:
    """It must not raise the quorum above what the others accept, and then stay away."""
    honest = {name: capabilities(settings) for name, settings in alike(3, "--max-honest=2").items()}
    for refusal in ({"max_honest": 1}, {"min_quorum": 1 << 31}, {"min_sigma": 1e300}):
        spec = spec_for({**honest, "mallory": liar(**refusal)}, verified=False)
        assert set(honest) <= set(spec.roster)
        assert spec.message.quorum == 3


@pytest.mark.parametrize("honest", [1, 2, 5])
def test_an_agent_is_not_left_alone_with_a_round_that_the_others_refuse(honest: int) -> None:
    """It would choose every label; who asks for a quorum of one gets it."""
    others = {f"agent-{number}": liar(min_sigma=50.0) for number in range(honest)}
    present = {**others, "mallory": liar(min_quorum=1, min_collusion=0)}
    with refused(ErrorKind.AGENTS_UNWILLING, "agent-0 wants sigma of at least 50"):
        spec_for(present)
    assert list(spec_for(present, quorum=1).roster) == ["mallory"]


@pytest.mark.parametrize("k", [1_001, 1 << 20])
def test_an_agent_with_more_neighbours_than_the_service_takes_bends_no_round(k: int) -> None:
    """Not its ring, its cost, nor whether it is verified."""
    present = {f"agent-{number}": capabilities(agent()) for number in range(3)}
    for ballot in (KNN_COUNT, KNN_FREQUENCY):
        alone = spec_for(present, ballot=ballot)
        spec = spec_for({**present, "mallory": liar(k=k)}, ballot=ballot)
        assert spec.roster == alone.roster
        assert spec.mechanism == alone.mechanism
        assert spec.message.verified == alone.message.verified
    with refused(ErrorKind.K_RANGE, str(k)):
        spec_for({"mallory": liar(k=k)})


@pytest.mark.parametrize("k", [200, 1_000])
def test_an_agent_with_many_neighbours_stops_no_round_by_them(k: int) -> None:
    """Its own votes are rounded, where noise in units as fine as it needs would be too large."""
    present = {f"agent-{number}": capabilities(agent()) for number in range(5)}
    frequency = KNN_FREQUENCY
    least = spec_for(present, ballot=frequency).message.fraction_bits
    spec = spec_for({**present, "mallory": liar(k=k)}, ballot=frequency)
    assert "mallory" in spec.roster and set(present) <= set(spec.roster)
    assert spec.message.fraction_bits >= least
    # As fine as it needs where that fits.
    spec = spec_for({**present, "mallory": liar(k=k)}, ballot=frequency, sigma=1.0)
    assert 2**spec.message.fraction_bits >= 16 * k
    with refused(ErrorKind.SPEC_INVALID, "sigma"):
        spec_for({**present, "mallory": liar(k=k)}, ballot=frequency, sigma=2.0**41)


@pytest.mark.parametrize(
    ("ballot", "level", "k"),
    [(KNN_COUNT, Level.AGENT, 500), (KNN_FREQUENCY, Level.INSTANCE, 1)],
)
def test_anothers_k_does_not_drain_an_agents_budget(
    ballot: BallotKind, level: Level, k: int, tmp_path: Path
) -> None:
    """An agent pays for what its own data moves; the service, for what anybody's does."""
    present = {f"agent-{number}": capabilities(agent()) for number in range(3)}
    alone, spec = (
        spec_for(agents, ballot=ballot, sigma=9.0, quorum=3)
        for agents in (present, {**present, "mallory": liar(k=k)})
    )
    with Ledger(tmp_path / "ledger.db", None) as ledger:
        Policy("agent-0", agent(), ledger).charge(spec)
        paid = ledger.spent(level, 1e-3)
    # Finer votes are rounded less: not a unit more is lost by them.
    assert paid <= charged_epsilon([alone.mechanism], level, 1e-3)
    assert charged_epsilon([spec.mechanism], level, 1e-3) > 4 * paid
    assert charged_epsilon([spec.mechanism_for("mallory")], level, 1e-3) > 4 * paid


def test_an_agent_casts_the_kinds_of_ballots_that_its_owner_names(tmp_path: Path) -> None:
    path = tmp_path / "part.npz"
    x = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    save_part(path, Dataset("points", x, np.arange(8) % CLASSES, CLASSES))

    def offered(*flags: str) -> list[int]:
        return list(prepare(agent(f"--data={path}", *flags), "ann")[0].offer.ballots)

    count, frequency = common_pb2.BALLOT_KIND_KNN_COUNT, common_pb2.BALLOT_KIND_KNN_FREQUENCY
    assert offered() == [count, frequency, common_pb2.BALLOT_KIND_ONE_HOT]
    assert offered("--ballots=knn_frequency") == [frequency]
    with pytest.raises(ConfigError, match=r"--ballots: .* casts knn_count, knn_frequency, one_hot"):
        offered("--ballots=multi_label")
