"""What must hold after every fault, checked from what is on disk and what passed on the wire.

1. Labels that were released are charged at the coordinator and at every agent that they count.
2. A party answers one aggregation of a round, ever; those that answer count the same set, which is
   no smaller than the quorum; what is counted is each agent's vote once.
3. An agent whose vote is counted has every contribution to it on disk, each once; and none of a
   round that it was not charged for.
4. A request ends with labels or with an error of the catalogue, in time; no round stays open; no
   process but the one that was killed ends.
5. No process logs an error that it did not expect.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agent_node.contributions import FILE
from mpc_vote import database
from mpc_vote.app.process import CommandError
from mpc_vote.errors import ErrorKind
from mpc_vote.privacy.ledger import LedgerView
from mpc_vote.proto.mpcvote.v1 import common_pb2, label_pb2
from mpc_vote.testbed.chaos.federation import (
    LIMIT_SECONDS,
    QUERIES,
    Federation,
    Labels,
    RequestOutcome,
)
from mpc_vote.testbed.chaos.proxy import InterceptedMessage, decode

_UNEXPECTED = ("Traceback", " ERROR ", " CRITICAL ")
_EXCERPT_LINES = 60
# Errors that say nothing, by the words under which they reach a client.
_VAGUE = ("(unknown)", "(internal)")
_RESTARTED = "the coordinator was restarted while the round was open."


@dataclass
class ObservedAggregation:
    """One call for an aggregation: whom it counts, and whether label shares came of it."""

    party: str
    agents: frozenset[tuple[str, bytes]]
    answered: bool = False


@dataclass
class AggregationWitness:
    """What the wire has seen of every round's aggregations."""

    _calls: dict[int, ObservedAggregation] = field(default_factory=dict)
    rounds: dict[str, list[ObservedAggregation]] = field(default_factory=dict)

    def see(self, passage: InterceptedMessage) -> None:
        """Takes note of a message."""
        if passage.step.method != "Aggregate":
            return
        key = id(passage.call)
        if passage.step.is_request:
            request = decode(passage.call.method, "request", passage.payload)
            agents = frozenset((h.agent, h.submission_id) for h in request.contributors)
            self._calls[key] = ObservedAggregation(passage.step.server, agents)
            self.rounds.setdefault(request.round_id, []).append(self._calls[key])
        elif passage.step.part == "response.shares":
            self._calls[key].answered = True


@dataclass(frozen=True)
class RecordedRound:
    """A round in the coordinator's archive."""

    round_id: str
    request_id: str
    spec: common_pb2.RoundSpec
    state: int
    reason: str
    labels: Labels | None
    counted: frozenset[str]


def recorded(federation: Federation, after: int = 0) -> list[RecordedRound]:
    """The rounds of the archive, oldest first, but for so many."""
    path = federation.directory / "data" / "coordinator" / "coordinator.db"
    columns = "round_id, request_id, spec, state, reason, completed, labels"
    with _reading(path) as opened:
        rows = opened.execute(
            f"SELECT {columns} FROM rounds ORDER BY rowid LIMIT -1 OFFSET ?", (after,)
        ).fetchall()
    return [_recorded(*row) for row in rows]


def _recorded(
    round_id: str,
    request_id: str,
    spec: bytes,
    state: int,
    reason: str,
    completed: bytes | None,
    labels: bytes | None,
) -> RecordedRound:
    message = common_pb2.RoundSpec.FromString(spec)
    absent = label_pb2.RoundCompleted.FromString(completed or b"").absences
    counted = {entry.agent for entry in message.roster} - {one.agent for one in absent}
    values = None if labels is None else np.frombuffer(labels, dtype="<u4").astype(np.int64)
    return RecordedRound(round_id, request_id, message, state, reason, values, frozenset(counted))


def violations(
    federation: Federation,
    rounds: Iterable[RecordedRound],
    outcomes: Iterable[RequestOutcome],
    seen: Mapping[str, list[ObservedAggregation]],
) -> Iterator[str]:
    """What is wrong, a sentence each; nothing if all is well."""
    data = federation.directory / "data"
    kept = {name: _contributions(data / name / FILE) for name in federation.agents}
    charged = {
        name: {spend.round_id for spend in _spends(data / name / "ledger.db")}
        for name in ("coordinator", *federation.agents)
    }
    marked = {name: _aggregated(data / name) for name in federation.party_addresses}
    known = list(rounds)
    for one in known:
        yield from _of_round(federation, one, seen.get(one.round_id, []), charged, marked)
        yield from _of_contributions(one, kept, seen.get(one.round_id, []))
    for name, (rounds_kept, used) in kept.items():
        if not rounds_kept <= charged[name]:
            yield f"{name} has counted contributions to a round that it was not charged for"
        if used != {QUERIES * len(rounds_kept)}:
            times = f"{sorted(used)} times in {len(rounds_kept)} rounds"
            yield f"{name} has counted its records {times} of {QUERIES} queries"
    for outcome in outcomes:
        yield from _of_outcome(outcome, [r for r in known if r.request_id == outcome.request_id])
    try:
        federation.check()
    except CommandError as error:
        yield str(error)


def _of_round(
    federation: Federation,
    one: RecordedRound,
    counts: list[ObservedAggregation],
    charged: Mapping[str, set[str]],
    marked: Mapping[str, set[str]],
) -> Iterator[str]:
    what = f"round {one.round_id}"
    complete = one.state == label_pb2.ROUND_STATE_COMPLETE
    if one.state == label_pb2.ROUND_STATE_OPEN:
        yield f"{what} stays open"
    if one.state == label_pb2.ROUND_STATE_FAILED and one.reason != _RESTARTED:
        name = one.reason.partition(":")[0]
        if name not in ErrorKind.__members__ or name == "INTERNAL" or _is_vague(one.reason):
            yield f"{what} failed without a clear reason: {one.reason}"
    answered = [count for count in counts if count.answered]
    for party in {count.party for count in answered}:
        if sum(count.party == party for count in answered) > 1:
            yield f"{what}: {party} answered two aggregations"
        if one.round_id not in marked[party]:
            yield f"{what}: {party} answered an aggregation that is not marked on disk"
    sets = {count.agents for count in answered}
    if len(sets) > 1:
        yield f"{what}: the parties answered for different sets"
    agents = {agent for members in sets for agent, _ in members}
    if complete:
        if {party for party in marked if one.round_id in marked[party]} != marked.keys():
            yield f"{what} is complete, and a party has no mark of it"
        if agents != one.counted:
            yield f"{what}: {sorted(one.counted)} are said to be counted, {sorted(agents)} were"
        want = federation.winners(one.request_id, sorted(one.counted))
        if one.labels is None or not np.array_equal(one.labels, want):
            yield f"{what}: labels {one.labels}, but the votes give {want}"
    if complete or answered:
        if len(agents) < one.spec.quorum:
            yield f"{what} was counted with {len(agents)} of {one.spec.quorum} agents"
        for name in ("coordinator", *sorted(agents)):
            if one.round_id not in charged[name]:
                yield f"{what}: label shares were released, and {name} was not charged"


def _of_contributions(
    one: RecordedRound,
    kept: Mapping[str, tuple[set[str], set[int]]],
    counts: list[ObservedAggregation],
) -> Iterator[str]:
    agents = {agent for count in counts if count.answered for agent, _ in count.agents}
    for name in sorted(agents & kept.keys()):
        if one.round_id not in kept[name][0]:
            yield f"round {one.round_id}: a vote was counted whose contributions {name} lacks"


def _of_outcome(outcome: RequestOutcome, rounds: list[RecordedRound]) -> Iterator[str]:
    what = f"the request {outcome.request_id}"
    if outcome.error in ("hung", "raised", "INTERNAL") or _is_vague(outcome.message):
        yield f"{what} ended without a clear error: {outcome.error}: {outcome.message}"
    if outcome.seconds > LIMIT_SECONDS:
        yield f"{what} took {outcome.seconds:.0f} s"
    if outcome.labels is not None:
        held = [one.labels for one in rounds if one.labels is not None]
        if len(held) != 1 or not np.array_equal(outcome.labels, held[0]):
            yield f"{what} got labels that are not the archive's"


def _is_vague(message: str) -> bool:
    return any(word in message for word in _VAGUE)


class ProcessLogs:
    """The processes' logs, read on from where they were read last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def violations(self) -> Iterator[str]:
        """New lines that should not be there."""
        for path in sorted(self._folder.glob("*.log")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                new = file.read()
            self._read[path] = self._read.get(path, 0) + len(new)
            lines = new.decode(errors="replace").splitlines()
            for number, line in enumerate(lines):
                if any(word in line for word in _UNEXPECTED):
                    yield f"the log of {path.stem}: " + "\n".join(
                        lines[number : number + _EXCERPT_LINES]
                    )
                    break


def _spends(path: Path) -> list[Any]:
    with contextlib.closing(LedgerView(path)) as ledger:
        return list(ledger.spends())


def _contributions(path: Path) -> tuple[set[str], set[int]]:
    """The rounds that an agent has answered, and how often its records were counted."""
    with _reading(path) as opened:
        opened.execute("BEGIN")
        rounds = {row[0] for row in opened.execute("SELECT round_id FROM rounds")}
        parts = opened.execute("SELECT used FROM counters").fetchall()
    return rounds, {int(one) for (part,) in parts for one in np.frombuffer(part, dtype="<u4")}


def _aggregated(directory: Path) -> set[str]:
    (path,) = directory.glob("*.db")
    with _reading(path) as opened:
        rows = opened.execute("SELECT round_id FROM rounds WHERE aggregated = 1").fetchall()
    return {row[0] for row in rows}


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(database.read_only(path)) as opened:
        yield opened
