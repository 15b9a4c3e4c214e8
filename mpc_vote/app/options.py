"""What a command's options accept, as shown to people: in its help, and in its refusals.

Everything is read from the JSON schema of the command's settings, so help, checks and refusals
agree.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError

Schema: TypeAlias = Mapping[str, Any]

_METAVARS = {
    "integer": "INT",
    "number": "NUMBER",
    "string": "TEXT",
    "path": "PATH",
    "table": "TABLE",
}
_NOUNS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "path": "a path",
    "boolean": "true or false",
    "array": "a list",
    "object": "a map of names to values",
    "table": "a table of settings",
}
_BOUNDS = {
    "minimum": "of at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
_NOT_FINITE = "finite_number"
_OUT_OF_BOUNDS = ("greater_than", "less_than", _NOT_FINITE)
"""How pydantic calls the mistakes of a number; any other is of something that is none."""


class Options:
    """The options of a settings model."""

    def __init__(self, model: type[BaseModel]) -> None:
        # As they are written, so that defaults are, too.
        whole = model.model_json_schema(mode="serialization")
        known, needed = whole.get("$defs", {}), whole.get("required", [])
        self._schemas: dict[str, Schema] = {
            name: {**schema, **_plain(schema, known), "required": name in needed}
            for name, schema in whole["properties"].items()
        }

    def add(self, parser: argparse.ArgumentParser, *flags: str, **told: Any) -> argparse.Action:
        """As argparse does, but in the words of whoever types it."""
        schema = self._schemas.get(told.get("dest", ""))
        if schema is not None:
            told["help"] = _help(schema).replace("%", "%%")
            if "metavar" in told:
                told["metavar"] = _metavar(schema)
            # A name of one letter has both forms, -k and --k.
            flags += tuple(f"-{flag}" for flag in flags if len(flag) == 2)
        return parser.add_argument(*flags, **told)

    def explain(self, error: ValidationError) -> str:
        """A sentence for each mistake: the option as it is typed, and what it takes."""
        lines = []
        for mistake in error.errors(include_url=False):
            name, schema, inside = self._find(mistake["loc"])
            match mistake["type"]:
                case "extra_forbidden":
                    name, text = name.removeprefix("--"), "is not a setting of this command"
                case "missing" if name.startswith("--"):
                    text = f"is missing: pass {name}, or set it in the file or the environment"
                case "missing":
                    text = "is missing"
                case "value_error":
                    text = mistake["msg"].removeprefix("Value error, ")
                case "too_short":
                    text = "is empty: name at least one"
                case "too_long":
                    text = f"are too many: at most {schema['maxItems']}"
                case kind:
                    text = _wanted(schema, inside, kind, mistake["input"])
            lines.append(f"{name}: {text}")
        return "; ".join(lines)

    def _find(self, place: Sequence[int | str]) -> tuple[str, Schema, bool]:
        """A setting as one types it, what it takes, and whether a value in it is meant; those of a
        table go by the table's place in the file."""
        key, *inside = place
        schema = self._schemas.get(str(key), {})
        name = str(key).replace("_", "-")
        tables = schema.get("items", {}).get("properties")
        if tables is None or len(inside) < 2:
            return f"--{name}", schema, bool(inside)
        number, setting, *further = inside
        schema = tables.get(str(setting), {})
        return f"{name}[{number}].{setting}", schema, bool(further)


def _plain(schema: Schema, known: Mapping[str, Schema]) -> Schema:
    """The schema of a value that is given, without references."""
    if "anyOf" in schema:  # a value, or none
        return _plain(schema["anyOf"][0], known)
    if "$ref" in schema:
        found = known[schema["$ref"].rpartition("/")[2]]
        if "enum" in found:
            return {"enum": found["enum"]}
        inner = {name: _plain(one, known) for name, one in found["properties"].items()}
        return {"type": "table", "properties": inner}
    if "items" in schema:
        return {**schema, "items": _plain(schema["items"], known)}
    return schema


def _help(schema: Schema) -> str:
    about: str = schema["description"]
    default = schema.get("default")
    if schema["required"]:
        return f"{about} (required)"
    if default in (None, [], {}) or default is False:
        return about
    return f"{about} (default: {_typed(default)})"


def _typed(value: Any) -> str:
    """A value as one types it."""
    if isinstance(value, list):
        return ",".join(_typed(one) for one in value)
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _metavar(schema: Schema) -> str:
    if "enum" in schema:
        return f"{{{','.join(schema['enum'])}}}"
    if schema["type"] == "array":
        return f"{_metavar(schema['items'])},..."
    if schema["type"] == "object":
        return "NAME=VALUE,..."
    return _METAVARS[schema.get("format", schema["type"])]


def _wanted(schema: Schema, inside: bool, kind: str, given: object) -> str:
    """What a setting, or with `inside` each value in a list or a map, must be instead."""
    if inside:
        schema = schema.get("items") or schema["additionalProperties"]
    shown = str(given) if kind.startswith(_OUT_OF_BOUNDS) else repr(given)
    if "enum" in schema:
        return f"choose one of {', '.join(schema['enum'])} (not {shown})"
    noun = _NOUNS[schema.get("format", schema["type"])]
    if kind == _NOT_FINITE:
        noun = "a finite number"
    bounds = [f"{words} {_typed(schema[key])}" for key, words in _BOUNDS.items() if key in schema]
    wanted = " ".join([noun, " and ".join(bounds)]).strip()
    return f"{'each ' if inside else ''}must be {wanted}, not {shown}"
