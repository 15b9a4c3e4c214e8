"""A short run of the fault simulation, and proof that its checks can fail.

`mpc-vote chaos` runs the same for hours: every fault at every step.
"""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpc_vote.app.process import CommandError
from mpc_vote.proto.mpcvote.v1 import label_pb2
from mpc_vote.testbed.chaos import invariants
from mpc_vote.testbed.chaos.federation import QUORUM, Federation, RequestOutcome
from mpc_vote.testbed.chaos.invariants import ObservedAggregation, ProcessLogs, RecordedRound
from mpc_vote.testbed.chaos.proxy import MessageStep
from mpc_vote.testbed.chaos.run import ScheduleReport, Simulation
from mpc_vote.testbed.chaos.schedules import Fault, Schedule, cover, every, in_turn

pytestmark = pytest.mark.slow

SEED = 2
_TRIES = 4
TWO = (
    "kill/agent-0@agent-0>coordinator:Attend:response.go:0#1"
    "+pause/party-1@coordinator>party-1:Aggregate:request.round_id:0#1"
)
NEVER = "kill/dealer@party-0>dealer:Deal:response.grant:99#1"

# Each of these once violated an invariant.
REGRESSIONS = [
    # The client took labels for complete that had not come, with an exception of numpy's.
    "swap/@client>coordinator:RequestLabels:response.labels:0#1",
    # It took labels that came twice for twice as many.
    "duplicate/@client>coordinator:RequestLabels:response.labels:0#1",
    # A party met an error of gRPC's that it did not know when a peer left the session.
    "duplicate/@party-0>party-2:Exchange:response.payload:0#1",
    # An agent whose stream was opened a second time, for a moment, was never heard again.
    "replay/@agent-1>coordinator:Attend:request.submitted:0#1",
]


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a short run left behind: its reports, and the federation as it is on disk."""

    federation: Federation
    reports: list[ScheduleReport]
    never: ScheduleReport

    @property
    def record(self) -> RecordedRound:
        """The first round, in which nothing went wrong."""
        return invariants.recorded(self.federation)[0]


async def tried(simulation: Simulation, schedule: Schedule) -> ScheduleReport:
    """Again where its step did not come: how far a round gets is up to the machine."""
    for _ in range(_TRIES):
        report = await simulation.run(schedule)
        if report.reached or report.violations:
            break
    return report


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One federation goes through each fault, each role, and what was wrong once."""
    federation = Federation.create(tmp_path_factory.mktemp("chaos"))

    async def run() -> Ran:
        async with federation.running():
            simulation = Simulation(federation)
            everything = await simulation.schedules(SEED)
            quick = [one for one in everything if one.seconds <= 1]
            chosen = cover(in_turn(quick, SEED)) + [Schedule.parse(n) for n in (TWO, *REGRESSIONS)]
            reports = [await tried(simulation, one) for one in chosen]
            return Ran(federation, reports, await simulation.run(Schedule.parse(NEVER)))

    return asyncio.run(run())


@pytest.mark.timeout(400)
def test_every_fault_and_role_leaves_the_invariants_whole(ran: Ran) -> None:
    """All of them: charged before released, one aggregation of a quorum, a clear end in time, the
    next round without another restart, nothing unexpected in any log."""
    for report in ran.reports:
        assert not report.violations, "\n".join([*report.log, *report.violations])
    # How far a round gets before others is up to the machine: some steps may not come.
    schedules = [report.schedule for report in ran.reports if report.reached]
    assert len(schedules) >= len(ran.reports) - 3
    assert len(set(Fault) - {one.fault for one in schedules}) <= 1
    roles = {one.role for one in schedules if one.victim}
    assert roles == {"client", "coordinator", "party", "dealer", "agent"}


def test_a_step_that_does_not_come_is_not_counted(ran: Ran) -> None:
    assert not ran.never.reached
    assert not ran.never.violations


# What was violated is found


def found(
    ran: Ran,
    counts: list[ObservedAggregation],
    outcomes: list[RequestOutcome] | None = None,
    **changes: Any,
) -> str:
    federation, record = ran.federation, ran.record
    changed = dataclasses.replace(record, **changes)
    seen = {changed.round_id: counts}
    return "\n".join(invariants.violations(federation, [changed], outcomes or [], seen))


def counts(record: RecordedRound, *agents: str) -> list[ObservedAggregation]:
    """What the wire saw of a good aggregation, of these agents or of all that were counted."""
    members = frozenset((agent, b"one") for agent in agents or record.counted)
    return [ObservedAggregation(f"party-{rank}", members, answered=True) for rank in range(3)]


def test_a_good_round_violates_nothing(ran: Ran) -> None:
    federation, record = ran.federation, ran.record
    outcome = RequestOutcome(record.request_id, 1.0, labels=record.labels)
    assert not found(ran, counts(record), [outcome])
    assert not list(ProcessLogs(federation.directory / "logs").violations())


def test_labels_without_a_charge_are_found(ran: Ran) -> None:
    """Label shares of a round that is in no ledger, whether it completed or not."""
    record = ran.record
    for state in (label_pb2.ROUND_STATE_COMPLETE, label_pb2.ROUND_STATE_FAILED):
        text = found(ran, counts(record), round_id="other", state=state)
        for name in ("coordinator", "agent-0", "agent-1", "agent-2"):
            assert f"label shares were released, and {name} was not charged" in text
        assert "party-0 answered an aggregation that is not marked on disk" in text


def test_contributions_that_are_lost_or_counted_twice_are_found(
    ran: Ran, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = invariants._contributions
    good = counts(ran.record)
    for planted, text in (
        (lambda rounds, used: (set(), {0}), "a vote was counted whose contributions agent-1 lacks"),
        (lambda rounds, used: (rounds, {2 * max(used)}), "agent-1 has counted its records"),
        (lambda rounds, used: (rounds, used | {0}), "agent-1 has counted its records"),
        (lambda rounds, used: ({*rounds, "other"}, used), "a round that it was not charged for"),
    ):
        monkeypatch.setattr(
            invariants, "_contributions", lambda path, planted=planted: planted(*sound(path))
        )
        assert text in found(ran, good)


def test_a_second_aggregation_and_other_sets_are_found(ran: Ran) -> None:
    record = ran.record
    good = counts(record)
    assert "party-1 answered two aggregations" in found(ran, [*good, good[1]])
    other = ObservedAggregation(
        "party-2", frozenset({("agent-0", b"one"), ("agent-1", b"one")}), answered=True
    )
    assert "answered for different sets" in found(ran, [*good[:2], other])
    retried = ObservedAggregation(
        "party-2", frozenset((a, b"two") for a in record.counted), answered=True
    )
    assert "answered for different sets" in found(ran, [*good[:2], retried])
    few, one = counts(record, "agent-0"), frozenset({"agent-0"})
    assert f"counted with 1 of {QUORUM} agents" in found(ran, few, counted=one)


def test_wrong_labels_are_found(ran: Ran) -> None:
    """In the archive, and at the client."""
    record = ran.record
    assert record.labels is not None
    wrong = (record.labels + 1) % 3
    assert "but the votes give" in found(ran, counts(record), labels=wrong)
    text = found(ran, counts(record), [RequestOutcome(record.request_id, 1.0, labels=wrong)])
    assert "labels that are not the archive's" in text
    # A ballot that counts twice shows: the winner is another somewhere.
    once = ran.federation.winners("asked", ["agent-0", "agent-1", "agent-2"])
    twice = ran.federation.winners("asked", ["agent-0", "agent-1", "agent-2", "agent-0"])
    assert not np.array_equal(once, twice)


@pytest.mark.parametrize(
    "outcome",
    [
        RequestOutcome("asked", 1.0, error="INTERNAL", message="it failed"),
        RequestOutcome("asked", 1.0, error="raised", message="ValueError()"),
        RequestOutcome("asked", 60.0, error="hung"),
        RequestOutcome(
            "asked", 1.0, error="PARTY_UNREACHABLE", message="It does not answer (unknown)."
        ),
    ],
    ids=lambda outcome: outcome.error,
)
def test_an_end_that_says_nothing_is_found(ran: Ran, outcome: RequestOutcome) -> None:
    assert "ended without a clear error" in found(ran, counts(ran.record), [outcome])


def test_rounds_that_stay_open_or_fail_without_a_reason_are_found(ran: Ran) -> None:
    assert "stays open" in found(ran, [], state=label_pb2.ROUND_STATE_OPEN)
    failed = label_pb2.ROUND_STATE_FAILED
    assert "without a clear reason" in found(ran, [], state=failed, reason="INTERNAL: it failed")
    assert not found(ran, [], state=failed, reason="QUORUM_MISSED: 1 of 2")


def test_a_traceback_in_a_log_is_found_once(tmp_path: Path) -> None:
    log = tmp_path / "party-0.log"
    log.write_text("12:00 INFO fine\n")
    logs = ProcessLogs(tmp_path)
    assert not list(logs.violations())
    with log.open("a") as file:
        file.write("12:01 ERROR Aggregate failed\nTraceback (most recent call last):\n")
    (text,) = logs.violations()
    assert text.startswith("the log of party-0: 12:01 ERROR Aggregate failed")
    assert not list(logs.violations())


# Schedules

STEPS = [
    MessageStep("client", "coordinator", "RequestLabels", "request.plan", 0),
    MessageStep("agent-0", "party-1", "SubmitShares", "request.header", 0),
    MessageStep("agent-1", "party-1", "SubmitShares", "request.header", 0),
    MessageStep("party-0", "dealer", "Deal", "response.grant", 0),
    MessageStep("party-0", "dealer", "Deal", "response.end", 0),
]


def test_a_schedules_name_says_all_of_it() -> None:
    for schedule in in_turn(every(STEPS, STEPS[:1], SEED), SEED):
        again = Schedule.parse(str(schedule))
        assert again == schedule
        assert (again.seconds, again.coin) == (schedule.seconds, schedule.coin)
    with pytest.raises(CommandError, match="names no schedule"):
        Schedule.parse("kill/dealer@nowhere")


def test_schedules_are_every_fault_at_every_step_in_an_order_by_seed() -> None:
    schedules = every(STEPS, STEPS[:1], SEED)
    assert len(set(schedules)) == len(schedules)
    assert {one.fault for one in schedules} == set(Fault)
    for step in STEPS:
        befallen = {one.victim for one in schedules if one.step == step and one.fault is Fault.KILL}
        assert befallen == set(step.pair)
    first = in_turn(schedules, SEED)
    assert {one for one in first if one.then is None} == set(schedules)
    for two in (one for one in first if one.then is not None):
        assert two.then is not None
        assert two.then.victim not in ("", two.victim)
        assert STEPS.index(two.step) < STEPS.index(two.then.step)
    assert len(first) > len(schedules), "some have two faults"
    assert first == in_turn(schedules, SEED) != in_turn(schedules, SEED + 1)
    # Two agents' steps are of one kind: the second of a kind waits until all kinds had a turn.
    singles = [one for one in first if one.then is None]
    kinds = [(one.fault, one.role, one.step.method, one.step.part) for one in singles]
    assert len(set(kinds[: len(set(kinds))])) == len(set(kinds))
