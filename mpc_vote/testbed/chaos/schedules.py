"""What can go wrong, where, and to whom: all schedules there are, and which come first.

A schedule is a fault at a step. Its name says all of it: whoever has the name can run it again.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import inf

from mpc_vote.app.process import CommandError
from mpc_vote.testbed.chaos.proxy import END, MessageStep, streams


class Fault(enum.StrEnum):
    """What goes wrong when a message is on its way."""

    # To a process at either end.
    KILL = "kill"  # SIGKILL; back once the request has ended
    RESTART = "restart"  # SIGKILL or SIGTERM; back at once
    PAUSE = "pause"  # SIGSTOP, then SIGCONT
    ISOLATE = "isolate"  # all its connections are reset, and refused for a while
    SILENCE = "silence"  # all its connections stay open, and carry nothing for a while
    # To the connection.
    CUT = "cut"
    HOLD = "hold"
    # To the message.
    DELAY = "delay"
    REORDER = "reorder"  # others that were sent later arrive before it
    SWAP = "swap"  # the next one of its stream arrives before it
    DUPLICATE = "duplicate"  # it arrives twice
    REPLAY = "replay"  # its whole call arrives again: at once, and after the round


# Faults after which a round takes ways that it does not take else: agents come back in its middle,
# before or after they were told to send; a party is missed by agents; a round is abandoned.
OPENERS = (
    "isolate/coordinator@agent-0>coordinator:Attend:response.announcement:0#1",
    "isolate/coordinator@agent-0>coordinator:Attend:response.go:0#0",
    "isolate/party-2@agent-2>coordinator:Attend:response.announcement:0#0",
    "cut/@coordinator>party-0:ListHoldings:request.round_id:0#0",
)

_ON_PROCESSES = (Fault.KILL, Fault.RESTART, Fault.PAUSE, Fault.ISOLATE, Fault.SILENCE)
# A client has one connection and is not started again: what it asked for is asked for again.
_ON_CLIENTS = (Fault.KILL, Fault.PAUSE)
_ON_LINES = (Fault.CUT, Fault.HOLD, Fault.DELAY)
# The longest is beyond the time that agents have to answer, or for ever: until the request has
# ended, in spite of it.
_SECONDS = (0.3, 0.3, 1.0, 1.0, 3.0, 7.0, inf)
_BESIDE = "+"
# Of the schedules that can be followed by a second fault, those that are, beside being run alone.
_TWO_PART = 0.3


@dataclass(frozen=True)
class Schedule:
    """A fault, the process it affects (none for the wire), the step, and the seed of the rest.

    Another one may follow it in the same round.
    """

    fault: Fault
    victim: str
    step: MessageStep
    seed: int
    then: Schedule | None = None

    def __str__(self) -> str:
        return _BESIDE.join(
            f"{part.fault}/{part.victim}@{part.step}#{part.seed}" for part in self.parts
        )

    @property
    def parts(self) -> Iterator[Schedule]:
        """This one alone, then what follows."""
        yield replace(self, then=None)
        if self.then is not None:
            yield from self.then.parts

    @property
    def kind(self) -> str:
        """The fault, or that there are two."""
        return self.fault.value if self.then is None else "two faults"

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """The schedule of this name."""
        text, _, rest = text.partition(_BESIDE)
        then = cls.parse(rest) if rest else None
        try:
            what, _, where = text.partition("@")
            fault, _, victim = what.partition("/")
            step, _, seed = where.partition("#")
            return cls(Fault(fault), victim, MessageStep.parse(step), int(seed), then)
        except ValueError as error:
            raise CommandError(f"{text!r} names no schedule: copy one that a run shows") from error

    @property
    def role(self) -> str:
        """Whom it affects, with agents and parties as one kind each; the sender of a message."""
        step = self.step
        return role_of(self.victim or (step.caller if step.is_request else step.server))

    @property
    def seconds(self) -> float:
        """How long it lasts; a client that is paused, or kept waiting, for ever would not end."""
        seconds = random.Random(f"{self} seconds").choice(_SECONDS)
        waits = self.victim == "client" or (
            self.fault is Fault.DELAY and self.step.caller == "client"
        )
        return min(seconds, _SECONDS[-2]) if waits else seconds

    @property
    def coin(self) -> bool:
        """Whether the message still arrives before its sender dies, and the like."""
        return random.Random(f"{self} coin").random() < 0.5


def role_of(name: str) -> str:
    """party-1 is a party."""
    return name.partition("-")[0]


def every(
    steps: Sequence[MessageStep], successors: Iterable[MessageStep], seed: int
) -> list[Schedule]:
    """All schedules of a round with these steps; `successors` have one after them to swap with."""
    swappable = set(successors)

    def at(step: MessageStep) -> Iterator[tuple[Fault, str]]:
        for victim in step.pair:
            for fault in _ON_CLIENTS if victim == "client" else _ON_PROCESSES:
                yield fault, victim
        for fault in _ON_LINES:
            yield fault, ""
        if step.part.endswith(END):
            return
        yield Fault.REORDER, ""
        if step in swappable:
            yield Fault.SWAP, ""
        if streams(step):
            yield Fault.DUPLICATE, ""
        if step.is_request and step.number == 0:
            yield Fault.REPLAY, ""

    return [Schedule(fault, victim, step, seed) for step in steps for fault, victim in at(step)]


def in_turn(schedules: Sequence[Schedule], seed: int) -> list[Schedule]:
    """All of them, in an order whose beginning has one of each fault, role and kind of step.

    Between them are some with a second fault, at a later step and to another process.
    """
    rng = random.Random(seed)
    kinds: dict[tuple[str, ...], list[Schedule]] = {}
    places: dict[MessageStep, int] = {}
    for schedule in schedules:
        *_, last = schedule.parts
        step = last.step
        places.setdefault(step, len(places))
        ends = (role_of(step.caller), role_of(step.server))
        key = (schedule.kind, last.fault, last.role, *ends, step.method, step.part)
        kinds.setdefault(key, []).append(schedule)
    groups = list(kinds.values())
    for group in groups:
        rng.shuffle(group)
    rng.shuffle(groups)
    ordered = []
    for one in (one for turn in zip_longest(*groups) for one in turn if one is not None):
        ordered.append(one)
        second = rng.choice(schedules)
        single = one.then is None and second.then is None
        later = places[one.step] < places[second.step]
        apart = second.victim not in ("", "client", one.victim)
        if single and later and apart and rng.random() < _TWO_PART:
            ordered.append(replace(one, then=second))
    return ordered


def cover(schedules: Iterable[Schedule]) -> list[Schedule]:
    """A few that have each fault and, among those that befall processes, each role."""
    faults, roles, chosen = set[Fault](), set[str](), []
    for one in schedules:
        if one.then is not None:
            continue
        if one.fault not in faults or (one.victim and one.role not in roles):
            faults.add(one.fault)
            roles |= {one.role} if one.victim else set()
            chosen.append(one)
    return chosen
