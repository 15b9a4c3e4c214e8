"""Reading a task's file: each value is taken once, by its type, and the rest is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

MAX_TEXT = 200
"""Characters in a name of a class, a column or a category."""

MAX_NUMBER = 2.0**53
"""Of a parameter: a number that every reader of JSON takes for the same."""

_TOLD = 5


class TaskError(ValueError):
    """A task that can't be used; the sentence says where, and what to write."""


class Section:
    """A table of the file, read value by value; `where` names it in errors."""

    def __init__(self, values: Any, where: str) -> None:
        if not isinstance(values, Mapping):
            raise TaskError(f"{where or 'the task'} must be a table of settings")
        self._values = dict(values)
        self._where = where

    def name_of(self, key: str) -> str:
        """How errors call a value."""
        return f"{self._where}.{key}" if self._where else key

    def text(self, key: str, default: str | None = None) -> str:
        """A short printable text."""
        value = self._take(key, default)
        return checked_text(value, self.name_of(key))

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        """Different short texts, in order."""
        value = self._take(key, default)
        if not isinstance(value, list | tuple):
            raise TaskError(f'{self.name_of(key)} must be a list such as ["a", "b"]')
        found = tuple(checked_text(one, f"each of {self.name_of(key)}") for one in value)
        check_different(found, self.name_of(key))
        return found

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number between bounds, both included."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise TaskError(f"{self.name_of(key)} must be a whole number from {low} to {high:,}")
        return value

    def integers(self, key: str, low: int, high: int) -> tuple[int, ...]:
        """Whole numbers between bounds, both included."""
        value = self._take(key, None)
        if not isinstance(value, list) or not all(
            isinstance(one, int) and not isinstance(one, bool) and low <= one <= high
            for one in value
        ):
            raise TaskError(f"{self.name_of(key)} must be a list of whole numbers from {low} up")
        return tuple(value)

    def number(self, key: str, low: float, high: float) -> float:
        """A number strictly between bounds."""
        value = self._take(key, None)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TaskError(f"{self.name_of(key)} must be a number")
        if not low < value < high:  # which NaN is not, either
            raise TaskError(f"{self.name_of(key)} must lie strictly between {low:g} and {high:g}")
        return float(value)

    def has(self, key: str) -> bool:
        """Whether a value is given, and was not read yet."""
        return key in self._values

    def section(self, key: str) -> Section:
        """A table within this one."""
        return Section(self._take(key, None), self.name_of(key))

    def sections(self, key: str) -> list[Section]:
        """Tables within this one, in order."""
        value = self._take(key, None)
        if not isinstance(value, list):
            raise TaskError(f"{self.name_of(key)} must be a list of tables: [[{key}]]")
        return [Section(one, f"{self.name_of(key)}[{n}]") for n, one in enumerate(value)]

    def rest(self) -> dict[str, str | int | float]:
        """All that was not read yet: texts, whole numbers and numbers by name."""
        rest, self._values = self._values, {}
        for key, value in rest.items():
            checked_text(key, f"each name in {self._where}")
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise TaskError(f"{self.name_of(key)} must be a text or a number")
            if not isinstance(value, str) and not -MAX_NUMBER <= value <= MAX_NUMBER:
                raise TaskError(f"{self.name_of(key)} must lie within {MAX_NUMBER:g}")
        return rest

    def done(self) -> None:
        """Refuses what nobody asked for."""
        if self._values:
            names = sorted(self.name_of(str(key)) for key in self._values)
            unknown = ", ".join(ascii(name)[1:-1][:MAX_TEXT] for name in names[:_TOLD])
            raise TaskError(f"{unknown}: no such setting of a task of this kind")

    def _take(self, key: str, default: Any) -> Any:
        if key in self._values:
            return self._values.pop(key)
        if default is None:
            raise TaskError(f"{self.name_of(key)} is missing")
        return default


def checked_text(value: Any, where: str) -> str:
    """A short text that can be shown in a line."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT or not value.isprintable():
        raise TaskError(f"{where} must be a printable text of 1 to {MAX_TEXT} characters")
    return value


def check_different(names: Iterable[str], where: str) -> None:
    """Refuses a name that stands twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise TaskError(f"{where} has {name!r} twice")
        seen.add(name)
