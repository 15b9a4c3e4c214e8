"""Writing a task as TOML for people to read: the standard library only reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mpc_vote.tasks.task import Task


def dump(task: Task, comments: tuple[str, ...] = ()) -> str:
    """The text of a task's file, with comments at its head."""
    lines = [f"# {comment}".rstrip() for comment in comments]
    return "\n".join([*lines, *_table("", task.settings())]) + "\n"


def _table(where: str, table: Mapping[str, Any]) -> Iterator[str]:
    """A table's own values first, then the tables in it."""
    inner = {key: value for key, value in table.items() if _is_table(value)}
    for key, value in table.items():
        if key not in inner:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in inner.items():
        name = f"{where}.{_key(key)}" if where else _key(key)
        for one in value if isinstance(value, list) else [value]:
            yield ""
            yield f"[[{name}]]" if isinstance(value, list) else f"[{name}]"
            yield from _table(name, one)


def _is_table(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, Mapping)


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "a").replace("-", "a").isalnum()
    return key if bare else _value(key)


def _value(value: Any) -> str:
    """Texts are printable, so what JSON escapes of them TOML reads the same way."""
    if isinstance(value, list):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
