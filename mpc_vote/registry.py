"""Things of one kind by name, and by their code on the wire: what can be added without touching
what uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Coded(Protocol):
    """What has a name for people and a code for the wire."""

    @property
    def name(self) -> str: ...

    @property
    def code(self) -> int: ...


C = TypeVar("C", bound=Coded)


class Registry(Generic[C]):
    """All that is known of one kind of thing, in the order of registration."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._known: dict[str, C] = {}

    def register(self, one: C) -> C:
        """Makes a thing known under its name and its code, which must be free."""
        if one.name in self._known or self.by_code(one.code) is not None:
            raise ValueError(f"the {self._what} {one.name!r} or its code {one.code} is taken")
        self._known[one.name] = one
        return one

    def unregister(self, one: C) -> None:
        """Forgets a thing."""
        del self._known[one.name]

    def __iter__(self) -> Iterator[C]:
        return iter(tuple(self._known.values()))

    def names(self) -> list[str]:
        """As people write them."""
        return list(self._known)

    def by_name(self, name: str) -> C:
        """What has this name."""
        if name not in self._known:
            raise ValueError(
                f"there is no {self._what} {name!r}: choose one of {', '.join(self._known)}"
            )
        return self._known[name]

    def chosen(self, given: object) -> C:
        """What a caller means who gives a name, or the thing itself."""
        for one in self._known.values():
            if given is one:
                return one
        return self.by_name(given if isinstance(given, str) else repr(given))

    def by_code(self, code: int) -> C | None:
        """What has this code, if it is known."""
        return next((one for one in self._known.values() if one.code == code), None)
