"""Runs schedules on one federation that lives on from each to the next."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import psutil

from mpc_vote.app.process import CommandError
from mpc_vote.proto.mpcvote.v1 import label_pb2
from mpc_vote.testbed.chaos.federation import LIMIT_SECONDS, Federation, RequestOutcome
from mpc_vote.testbed.chaos.invariants import AggregationWitness, ProcessLogs, recorded, violations
from mpc_vote.testbed.chaos.passing import Passing
from mpc_vote.testbed.chaos.proxy import END, InterceptedMessage, MessageStep, pass_on
from mpc_vote.testbed.chaos.schedules import OPENERS, Fault, Schedule, every, role_of

# How long after a fault is over the service may need until it labels again.
RECOVERY_SECONDS = 120.0
_REPLAY_SECONDS = 5.0
_HELD_SECONDS = 2.0
_OVERTAKING = 3
_STEADY_ROUNDS = 2
_POLL_SECONDS = 0.1
# Periodic, and not of any round. An agent asks a party for its health in a round only.
_BESIDE = "Check"
_TAIL_LINES = 25
_MIB = 2**20
# A process that is this much larger than after its first rounds has a leak.
_GROWTH_BYTES = 256 * _MIB


class FaultInjector:
    """The tap that makes one schedule happen."""

    def __init__(
        self, federation: Federation, schedule: Schedule | None, witness: AggregationWitness
    ) -> None:
        self._federation = federation
        self._ahead = list(schedule.parts) if schedule is not None else []
        self._witness = witness
        self._tasks: list[asyncio.Task[None]] = []
        self._replayed: Passing | None = None
        self._overtaken: asyncio.Semaphore | None = None
        self._held: InterceptedMessage | None = None
        # Nothing came that the held message could have been swapped with.
        self._alone = False
        self._began = time.monotonic()
        self._ended = asyncio.Event()
        self.passages: list[InterceptedMessage] = []
        self.log: list[str] = []

    async def __call__(self, passage: InterceptedMessage) -> None:
        """Passes a message on; at the schedule's step the fault happens first."""
        self._witness.see(passage)
        step = passage.step
        beside = step.method == _BESIDE and role_of(step.caller) != "agent"
        if step.number >= 0 and not beside:
            self.passages.append(passage)
            self._note(str(step))
        if self._held is not None and _same_way(self._held, passage):
            held, self._held = self._held, None
            self._tasks.pop().cancel()
            await pass_on(passage)
            await pass_on(held)
        elif not self._ahead or step != self._ahead[0].step:
            if self._overtaken is not None:
                self._overtaken.release()
            await pass_on(passage)
        else:
            schedule = self._ahead.pop(0)
            self._note(f"-- {schedule}")
            await self._act(schedule, passage)

    async def _act(self, schedule: Schedule, passage: InterceptedMessage) -> None:
        federation, victim = self._federation, schedule.victim
        line = federation.wire.lines[passage.step.pair]
        match schedule.fault:
            case Fault.KILL | Fault.RESTART:
                if schedule.coin:
                    await pass_on(passage)
                polite = schedule.fault is Fault.RESTART and schedule.seconds < 1
                number = signal.SIGTERM if polite else signal.SIGKILL
                # Beside the call that brought us here, which ends with its process.
                self._beside(self._end(victim, number, schedule.fault is Fault.RESTART))
            case Fault.PAUSE:
                process = federation.process(victim)
                process.suspend()
                self._beside(self._after(schedule.seconds, [process.resume]))
                await pass_on(passage)
            case Fault.CUT | Fault.ISOLATE:
                lines = federation.wire.of(victim) if victim else [line]
                if schedule.coin:
                    await pass_on(passage)
                for one in lines:
                    one.cut()
                self._beside(self._after(schedule.seconds, [one.join for one in lines]))
            case Fault.HOLD | Fault.SILENCE:
                lines = federation.wire.of(victim) if victim else [line]
                for one in lines:
                    one.hold()
                self._beside(self._after(schedule.seconds, [one.release for one in lines]))
                await pass_on(passage)
            case Fault.DELAY:
                await self._last(schedule.seconds)
                await pass_on(passage)
            case Fault.REORDER:
                self._overtaken = asyncio.Semaphore(0)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_HELD_SECONDS):
                        for _ in range(_OVERTAKING):
                            await self._overtaken.acquire()
                await pass_on(passage)
            case Fault.SWAP:
                self._held = passage
                self._beside(self._release(passage))
            case Fault.DUPLICATE:
                await pass_on(passage)
                await pass_on(passage)
            case Fault.REPLAY:
                self._replayed = passage.call
                if schedule.coin:
                    await passage.call.replay(_REPLAY_SECONDS)
                    await pass_on(passage)
                else:
                    await pass_on(passage)
                    self._beside(self._replay_whole(passage.call))

    def end(self) -> None:
        """The request has ended: what lasts for ever is over."""
        self._ended.set()

    async def settle(self) -> bool:
        """Waits until all is over, and starts again what was killed; whether every fault came."""
        self.end()
        reached, self._ahead = not self._ahead and not self._alone, []
        for task in self._tasks:
            await task
        for name in list(self._federation.killed):
            await self._federation.revive(name)
        if self._replayed is not None:
            await self._replayed.replay(_REPLAY_SECONDS)
        return reached

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.create_task(work))

    def _note(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:7.3f} {text}")

    async def _end(self, victim: str, number: signal.Signals, back: bool) -> None:
        await self._federation.kill(victim, number)
        self._note(f"-- {victim} has ended")
        if back:
            await self._federation.revive(victim)
            self._note(f"-- {victim} is back")

    async def _after(self, seconds: float, ends: Iterable[Callable[[], None]]) -> None:
        await self._last(seconds)
        for end in ends:
            # A process that was paused may have been killed since.
            with contextlib.suppress(psutil.NoSuchProcess):
                end()
        self._note("-- over")

    async def _last(self, seconds: float) -> None:
        await (self._ended.wait() if seconds == inf else asyncio.sleep(seconds))

    async def _release(self, passage: InterceptedMessage) -> None:
        """What nothing follows must not be lost."""
        await asyncio.sleep(_HELD_SECONDS)
        if self._held is passage:
            self._held, self._alone = None, True
            with contextlib.suppress(Exception):
                await pass_on(passage)

    async def _replay_whole(self, call: Passing) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(call.whole.wait(), _HELD_SECONDS)
        await call.replay(_REPLAY_SECONDS)


def _followed(passages: Iterable[InterceptedMessage]) -> list[MessageStep]:
    """The steps after which their stream has another message the same way."""
    last: dict[tuple[int, bool], MessageStep] = {}
    found = []
    for passage in passages:
        if passage.step.part.endswith(END):
            continue
        way = (id(passage.call), passage.step.is_request)
        if way in last:
            found.append(last[way])
        last[way] = passage.step
    return found


def _same_way(held: InterceptedMessage, passage: InterceptedMessage) -> bool:
    return held.call is passage.call and held.step.is_request == passage.step.is_request


@dataclass
class ScheduleReport:
    """The outcome of one schedule."""

    schedule: Schedule
    reached: bool
    outcome: RequestOutcome
    # Until the service labelled again after the fault was over, and requests that it took.
    recovery_seconds: float
    recovery_requests: int
    seconds: float
    log: list[str]
    recovered: bool = True
    violations: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "schedule": str(self.schedule),
            "fault": self.schedule.kind,
            "role": self.schedule.role,
            "reached": self.reached,
            "outcome": self.outcome.name,
            "request_seconds": self.outcome.seconds,
            "recovery_seconds": self.recovery_seconds,
            "recovery_requests": self.recovery_requests,
            "seconds": self.seconds,
            "violations": self.violations,
        }


class Simulation:
    """One federation, and what it has been through."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._witness = AggregationWitness()
        self._logs = ProcessLogs(federation.directory / "logs")
        self._checked = 0
        # By process: its role, and its size after each schedule.
        self._sizes: dict[int, tuple[str, list[int]]] = {}

    async def schedules(self, seed: int) -> list[Schedule]:
        """Every fault at every step of a round in which nothing goes wrong, and at every further
        step that comes when one thing does."""
        for _ in range(_STEADY_ROUNDS):
            actor = self._arm(None)
            outcome = await self._federation.ask(_fresh())
            if outcome.labels is None:
                raise CommandError(f"without any fault a request failed: {outcome.message}")
        steps = dict.fromkeys(passage.step for passage in actor.passages)
        found = every(list(steps), _followed(actor.passages), seed)
        for opener in map(Schedule.parse, OPENERS):
            actor = self._arm(opener)
            outcome = await self._federation.ask(_fresh())
            await self._quiet()
            await actor.settle()
            further = dict.fromkeys(p.step for p in actor.passages if p.step not in steps)
            steps |= further
            found += [replace(opener, then=one) for one in every(list(further), [], seed)]
            await self._recover(outcome)
        return found

    async def run(self, schedule: Schedule) -> ScheduleReport:
        """One schedule: the fault in a round, then a round without."""
        started = time.monotonic()
        request_id = _fresh()
        actor = self._arm(schedule)
        by_command = "client" in [part.victim for part in schedule.parts]
        ask = self._federation.ask_by_command if by_command else self._federation.ask
        outcomes = [outcome := await ask(request_id)]
        if "coordinator" in [part.victim for part in schedule.parts]:
            # Nobody else can end its rounds.
            actor.end()
        await self._quiet()
        found, reached = [], False
        try:
            reached = await actor.settle()
            over = time.monotonic()
            again = await self._recover(outcome)
        except Exception as error:
            over, again = time.monotonic(), []
            found.append(f"the service did not recover: {error!r}")
        outcomes += again
        report = ScheduleReport(
            schedule,
            reached,
            outcome,
            time.monotonic() - over,
            len(again),
            0.0,
            actor.log,
            not found,
            found,
        )
        found += await self._violations(outcomes)
        report.seconds = time.monotonic() - started
        return report

    def sizes(self) -> dict[str, dict[str, float]]:
        """By role, in MiB: the largest process, and the most that one has grown since its start."""
        found: dict[str, dict[str, float]] = {}
        for role, sizes in self._sizes.values():
            if not sizes:
                continue
            one = found.setdefault(role, {"largest": 0.0, "growth": 0.0, "schedules": 0})
            one["largest"] = max(one["largest"], max(sizes) / _MIB)
            one["growth"] = max(one["growth"], (sizes[-1] - sizes[0]) / _MIB)
            one["schedules"] = max(one["schedules"], len(sizes))
        return found

    def _arm(self, schedule: Schedule | None) -> FaultInjector:
        actor = FaultInjector(self._federation, schedule, self._witness)
        self._federation.wire.begin(actor)
        return actor

    async def _recover(self, outcome: RequestOutcome) -> list[RequestOutcome]:
        """Asks again, under the same name if there was no answer, until there are labels."""
        federation, again = self._federation, []
        async with asyncio.timeout(RECOVERY_SECONDS):
            await federation.ready(RECOVERY_SECONDS)
            if outcome.labels is None:
                again.append(await federation.ask(outcome.request_id))
            while True:
                again.append(await federation.ask(_fresh()))
                if again[-1].labels is not None:
                    return again
                await asyncio.sleep(_POLL_SECONDS)

    async def _quiet(self) -> None:
        """Waits until no round is open, unless there is nobody to end it."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while "coordinator" not in self._federation.killed and time.monotonic() < deadline:
            rounds = recorded(self._federation, self._checked)
            if not any(one.state == label_pb2.ROUND_STATE_OPEN for one in rounds):
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _violations(self, outcomes: list[RequestOutcome]) -> list[str]:
        federation = self._federation
        await self._quiet()
        rounds = recorded(federation, self._checked)
        self._checked += len(rounds)
        found = list(violations(federation, rounds, outcomes, self._witness.rounds))
        found += self._logs.violations()
        found += self._measure()
        return found

    def _measure(self) -> list[str]:
        found = []
        for name, child in self._federation.children.items():
            pid = child.process.pid
            sizes = self._sizes.setdefault(pid, (role_of(name), []))[1]
            with contextlib.suppress(psutil.Error):
                sizes.append(psutil.Process(pid).memory_info().rss)
                if sizes[-1] - sizes[0] > _GROWTH_BYTES:
                    found.append(f"{name} has grown from {sizes[0]} to {sizes[-1]} bytes")
        return found


def tails(federation: Federation) -> Iterator[tuple[str, str]]:
    """The end of every process's log."""
    for log in sorted((federation.directory / "logs").glob("*.log")):
        yield log.stem, "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])


def outcomes_by_kind(reports: Iterable[ScheduleReport]) -> dict[tuple[str, str], Counter[str]]:
    """How requests ended, by fault and role; only of schedules whose step came."""
    table: dict[tuple[str, str], Counter[str]] = {}
    for report in reports:
        if report.reached:
            key = (report.schedule.kind, report.schedule.role)
            table.setdefault(key, Counter())[report.outcome.name] += 1
    return table


def _fresh() -> str:
    return secrets.token_hex(8)
