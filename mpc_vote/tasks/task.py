"""A task: what all members of a federation agree on before any private record is seen.

One public file, `task.toml`, says what is voted on, how it is compared and how votes are cast.
Everything in it comes from public knowledge: scales, categories and feature maps that followed from
private records would cost privacy that nobody accounts for. The digest of its content, not of its
layout or comments, is part of every round's spec: whoever has another task takes no part.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.pki.identity import NAME_PATTERN
from mpc_vote.tasks.inputs import Input, parse_input
from mpc_vote.tasks.parsing import MAX_TEXT, Section, TaskError
from mpc_vote.voting.ballots import BALLOTS, BallotKind
from mpc_vote.voting.limits import MAX_CLASSES, MAX_K

FORMAT = 1
MAX_TASK_BYTES = 1 << 20
MAX_RADIUS = 1e15
"""In the task's features: its square is a float32, and it is beyond all inputs' distances."""

MAX_CONTRIBUTIONS = 1 << 30
# A key of very many parts takes the standard library's parser hours; no text of a task has so many.
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
_DEEP = re.compile(rf"(?<![\w\\-]){_PART}(?:\.[ \t]*+{_PART}){{{MAX_TEXT // 2}}}")


@dataclass(frozen=True)
class Features:
    """The map in which inputs are compared, by name, with its public parameters."""

    map: str
    parameters: Mapping[str, str | int | float] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        """As the task's file has them, whole numbers without a point: 1 and 1.0 are one task."""
        whole = {
            key: int(value)
            for key, value in self.parameters.items()
            if isinstance(value, float) and value.is_integer()
        }
        return {"map": self.map, **self.parameters, **whole}


@dataclass(frozen=True)
class Vote:
    """How votes are cast: the kind of ballot, for neighbours their number and how near they must
    be, and to how many queries one record may contribute."""

    ballot: BallotKind
    k: int = 0
    reach: float | None = None
    tau: int = 0
    radius: float | None = None
    max_contributions: int | None = None

    def settings(self) -> dict[str, Any]:
        """As the task's file has them."""
        given = {
            "k": self.k,
            "reach": self.reach,
            "radius": self.radius,
            "max_contributions": self.max_contributions,
            "tau": self.tau,
        }
        return {"ballot": self.ballot.name} | {key: value for key, value in given.items() if value}


@dataclass(frozen=True)
class Task:
    """A valid task."""

    name: str
    classes: tuple[str, ...]
    input: Input
    features: Features
    vote: Vote

    @classmethod
    def load(cls, path: str | Path) -> Task:
        """From a file; a `TaskError` names it and says what to write."""
        if Path(path).is_dir():
            raise TaskError(f"{path}: it is a folder: name the task's file, such as task.toml")
        try:
            with Path(path).open("rb") as file:
                content = file.read(MAX_TASK_BYTES + 1)
        except OSError as error:
            raise TaskError(f"{path}: the task can't be read: {error.strerror}") from error
        try:
            return cls.parse(content.decode())
        except (TaskError, UnicodeDecodeError) as error:
            raise TaskError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, text: str) -> Task:
        """From the text of a file."""
        if len(text.encode()) > MAX_TASK_BYTES:
            raise TaskError(f"a task takes at most {MAX_TASK_BYTES:,} bytes")
        if _DEEP.search(text):
            raise TaskError("not valid TOML of a task: a key has too many parts")
        try:
            content = tomllib.loads(text)
        except (
            ValueError,
            RecursionError,
        ) as error:  # a number of too many digits is no TOML error
            raise TaskError(f"not valid TOML: {error}") from error
        return cls._of(content)

    @classmethod
    def from_wire(cls, content: bytes) -> Task:
        """From `wire` of another process."""
        if len(content) > MAX_TASK_BYTES:
            raise TaskError(f"a task takes at most {MAX_TASK_BYTES:,} bytes")
        try:
            settings = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise TaskError("not a task: its JSON can't be read") from error
        return cls._of(settings)

    @classmethod
    def _of(cls, content: Any) -> Task:
        section = Section(content, "")
        section.integer("format", FORMAT, FORMAT)
        name = section.text("name")
        if not NAME_PATTERN.fullmatch(name):
            raise TaskError("name must have lower-case letters, digits and dashes only, up to 63")
        classes = section.texts("classes")
        task = cls(
            name,
            classes,
            parse_input(section.section("input")),
            _features(section.section("features")),
            _vote(section.section("vote"), len(classes)),
        )
        section.done()
        return task

    def settings(self) -> dict[str, Any]:
        """All that the file says, in its order."""
        return {
            "format": FORMAT,
            "name": self.name,
            "classes": list(self.classes),
            "input": {"kind": self.input.kind, **self.input.settings()},
            "features": self.features.settings(),
            "vote": self.vote.settings(),
        }

    @cached_property
    def wire(self) -> bytes:
        """The content in one form: equal tasks have equal bytes."""
        return json.dumps(
            self.settings(), sort_keys=True, ensure_ascii=True, separators=(",", ":")
        ).encode()

    @cached_property
    def digest(self) -> bytes:
        """What roles compare."""
        return hashlib.sha256(self.wire).digest()

    @property
    def attributes(self) -> bool:
        """Whether classes are attributes, each with a yes or no of its own."""
        return self.vote.ballot.attributes

    def names(self, labels: npt.NDArray[np.integer[Any]]) -> list[str] | list[list[str]]:
        """The class of each label by name; of attributes a list of all that a row has."""
        if not self.attributes:
            return [self.classes[int(label)] for label in labels]
        return [[self.classes[place] for place in np.flatnonzero(row)] for row in labels]

    def differences(self, other: Task) -> list[str]:
        """What another task has otherwise, a sentence each: `vote.k is 50 here, 20 there`."""
        here, there = (dict(_leaves("", task.settings())) for task in (self, other))
        found = []
        for key in dict.fromkeys([*here, *there]):
            mine, its = here.get(key, _MISSING), there.get(key, _MISSING)
            if mine != its:
                found.append(f"{key} is {_shown(mine)} here, {_shown(its)} there")
        return found


_MISSING = object()
_SHOWN = 60


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "left out"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _leaves(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """All values with their names; columns go by their own."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _leaves(f"{where}.{key}" if where else key, one)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        yield f"{where} in order", [one["name"] for one in value]
        for one in value:
            yield from _leaves(f"{where}[{one['name']}]", one)
    else:
        yield where, value


def _features(section: Section) -> Features:
    """The feature map of a task's file; what makes the map checks its parameters."""
    return Features(section.text("map"), section.rest())


def _vote(section: Section, classes: int) -> Vote:
    """How votes are cast, from a task's file."""
    name = section.text("ballot")
    if name not in BALLOTS.names():
        raise TaskError(f"{section.name_of('ballot')} must be one of {', '.join(BALLOTS.names())}")
    ballot = BALLOTS.by_name(name)
    if not ballot.min_classes <= classes <= MAX_CLASSES:
        raise TaskError(
            f"{name} ballots take {ballot.min_classes} to {MAX_CLASSES:,} classes, not {classes}"
        )
    k = section.integer("k", 1, MAX_K) if section.has("k") or ballot.needs_k else 0
    reach = section.number("reach", 0.0, 1.0) if section.has("reach") else None
    radius = section.number("radius", 0.0, MAX_RADIUS) if section.has("radius") else None
    if radius is not None and ballot.attributes:
        raise TaskError(f"{section.name_of('radius')}: {name} ballots have no radius")
    bound = None
    if section.has("max_contributions"):
        bound = section.integer("max_contributions", 1, MAX_CONTRIBUTIONS)
        if not ballot.needs_k or radius is None:
            raise TaskError(
                f"{section.name_of('max_contributions')} takes a kNN ballot and a radius: a record "
                "contributes to the queries that lie within a radius of it, which must not follow "
                "from what is asked; mpc-vote task init --planned-queries works out both"
            )
    tau = section.integer("tau", 1, classes) if ballot.needs_tau else 0
    section.done()
    return Vote(ballot, k, reach, tau, radius, bound)
