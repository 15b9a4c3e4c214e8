"""Known answers on file: a topic has rules, and cases of them with what each gives or refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mpc_vote.errors import VoteError

FOLDER = Path(__file__).parent
_COLUMNS = 100

Rule = Callable[[dict[str, Any]], dict[str, Any]]
"""From what is given to what follows; both are JSON, with bytes in hex."""
Rules = Mapping[str, Rule]


class Case(NamedTuple):
    """One case of a rule; `refused` is the name of the error that must come of it, if any."""

    rule: str
    name: str
    given: dict[str, Any]
    refused: str = ""


@dataclass(frozen=True)
class Topic:
    """What one file holds; `what` says what it shows, and where that is documented."""

    what: str
    rules: Rules
    cases: Sequence[Case]

    def made(self) -> dict[str, Any]:
        """The file's content, as the code gives it now."""
        return {"what": self.what, "cases": [self._made(case) for case in self.cases]}

    def _made(self, case: Case) -> dict[str, Any]:
        found = answer(self.rules[case.rule], case.given)
        return {"rule": case.rule, "name": case.name, "given": case.given, **found}


def answer(rule: Rule, given: dict[str, Any]) -> dict[str, Any]:
    """What a rule gives, or the name of the error by which it refuses."""
    try:
        return {"gives": rule(given)}
    except VoteError as error:
        return {"refused": error.kind.name}
    except ValueError as error:
        return {"refused": type(error).__name__}


def read(name: str) -> dict[str, Any]:
    """A file's content."""
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return content


def write(name: str, content: dict[str, Any]) -> None:
    """Makes a file anew."""
    (FOLDER / f"{name}.json").write_text(readable(content) + "\n")


def readable(value: Any, indent: str = "") -> str:
    """JSON with one line for whatever fits in one, so that people can read and compare it."""
    line = json.dumps(value)
    if not isinstance(value, (dict, list)) or len(indent) + len(line) <= _COLUMNS:
        return line
    inner = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key)}: {readable(part, inner)}" for key, part in value.items()]
    elif all(isinstance(part, int) for part in value):
        return "[\n" + _filled(value, inner) + f"\n{indent}]"
    else:
        parts = [readable(part, inner) for part in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{closing}"


def _filled(numbers: Sequence[int], indent: str) -> str:
    """Numbers, as many to a line as fit."""
    lines = [indent]
    for place, number in enumerate(numbers):
        text = json.dumps(number) + ("," if place < len(numbers) - 1 else "")
        if len(lines[-1]) + len(text) > _COLUMNS:
            lines.append(indent)
        lines[-1] += text if lines[-1] == indent else f" {text}"
    return "\n".join(lines)
