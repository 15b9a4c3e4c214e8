"""What is voted on: vectors, images, tables and texts, each with its one form on the wire.

Every kind of input travels as rows of one dtype and shape, so that all roles can check them without
knowing more. A table's row can be decoded again, so that a model of one's own sees the
columns as they were.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mpc_vote.tasks.parsing import Section, TaskError, check_different
from mpc_vote.transport.tensors import MAX_DIMENSIONS, MAX_ROW_BYTES, MAX_SIZE

Array = npt.NDArray[Any]

MAX_COLUMNS = 10_000
MAX_CATEGORIES = 10_000
MAX_PIXELS = 4_096
"""To a side of a picture."""


class Input(ABC):
    """A kind of input."""

    kind: ClassVar[str]
    dtype: ClassVar[np.dtype[Any]]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of one row on the wire."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """As the task's file has them, without `kind`."""

    def check(self, rows: Array, before: int = 0) -> None:
        """Refuses rows that are not of this input, naming the first; others may come `before`."""
        if rows.dtype != self.dtype or rows.shape[1:] != self.shape:
            raise ValueError(
                f"the task's inputs are {self.dtype} of shape {self.shape}, "
                f"not {rows.dtype} of shape {rows.shape[1:]}"
            )
        wrong = np.flatnonzero(~self.sound(rows))
        if len(wrong):
            raise ValueError(f"row {before + int(wrong[0])} is no {self.kind} of this task")

    def sound(self, rows: Array) -> npt.NDArray[np.bool_]:
        """Which rows hold what the task allows."""
        return np.ones(len(rows), dtype=np.bool_)


@dataclass(frozen=True)
class VectorInput(Input):
    """Numbers of any meaning: what a model or a reader of one's own makes."""

    dimensions: tuple[int, ...]
    kind: ClassVar[str] = "vector"
    dtype: ClassVar[np.dtype[Any]] = np.dtype("<f4")

    @classmethod
    def parse(cls, section: Section) -> VectorInput:
        """From a task's file."""
        dimensions = section.integers("shape", 1, MAX_ROW_BYTES)
        if not 0 < len(dimensions) < MAX_DIMENSIONS:
            raise TaskError(f"input.shape must have 1 to {MAX_DIMENSIONS - 1} dimensions")
        if 4 * math.prod(dimensions) > MAX_ROW_BYTES:
            raise TaskError(f"input.shape: a row takes over {MAX_ROW_BYTES:,} bytes")
        return cls(dimensions)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.dimensions

    def settings(self) -> dict[str, Any]:
        return {"shape": list(self.dimensions)}

    def sound(self, rows: Array) -> npt.NDArray[np.bool_]:
        return np.asarray((np.abs(rows) <= MAX_SIZE).reshape(len(rows), -1).all(axis=1))


@dataclass(frozen=True)
class ImageInput(Input):
    """Pictures of one size, as bytes: (height, width) if grey, else (3, height, width)."""

    height: int
    width: int
    channels: int
    kind: ClassVar[str] = "image"
    dtype: ClassVar[np.dtype[Any]] = np.dtype("u1")

    @classmethod
    def parse(cls, section: Section) -> ImageInput:
        """From a task's file."""
        height, width = (section.integer(side, 1, MAX_PIXELS) for side in ("height", "width"))
        channels = section.integer("channels", 1, 3)
        if channels == 2:
            raise TaskError("input.channels must be 1 (grey) or 3 (colour)")
        if height * width * channels > MAX_ROW_BYTES:
            raise TaskError(f"a picture of the task takes over {MAX_ROW_BYTES:,} bytes")
        return cls(height, width, channels)

    @property
    def shape(self) -> tuple[int, ...]:
        size = (self.height, self.width)
        return size if self.channels == 1 else (self.channels, *size)

    def settings(self) -> dict[str, Any]:
        return {"height": self.height, "width": self.width, "channels": self.channels}


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers; `center` and `scale` are public, and make it comparable to others.

    On the wire it is two numbers: the value, or 0 where it is missing, and whether it is there.
    """

    name: str
    center: float
    scale: float
    kind: ClassVar[str] = "number"
    width: ClassVar[int] = 2

    def encode(
        self, values: Sequence[float | None] | npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float32]:
        """(rows, 2); None and NaN are missing."""
        found = np.array([math.nan if value is None else value for value in values], dtype=float)
        there = ~np.isnan(found)
        return np.stack([np.where(there, found, 0.0), there], axis=1).astype(np.float32)

    def decode(self, cells: npt.NDArray[np.float32]) -> list[float | None]:
        """What was encoded, to the precision of a float32."""
        return [float(value) if there else None for value, there in cells]

    def sound(self, cells: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Which rows are what `encode` makes."""
        value, there = cells[:, 0], cells[:, 1]
        found: npt.NDArray[np.bool_] = np.where(
            there == 1, np.abs(value) <= MAX_SIZE, (there == 0) & (value == 0)
        )
        return found

    def settings(self) -> dict[str, Any]:
        """As the task's file has them."""
        return {
            "name": self.name,
            "kind": self.kind,
            "center": self.center,
            "scale": self.scale,
        }


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories, all of which are public.

    On the wire it is a code: 0 is missing, then the values in order, then "any other".
    """

    name: str
    values: tuple[str, ...]
    kind: ClassVar[str] = "category"
    width: ClassVar[int] = 1

    @property
    def other(self) -> int:
        """The code of a value that the task does not list."""
        return len(self.values) + 1

    def encode(self, values: Sequence[str | None]) -> npt.NDArray[np.float32]:
        """(rows, 1)."""
        codes = {value: code for code, value in enumerate(self.values, 1)}
        found = [0 if value is None else codes.get(value, self.other) for value in values]
        return np.array(found, dtype=np.float32)[:, None]

    def decode(self, cells: npt.NDArray[np.float32]) -> list[str | None]:
        """The values; None where one was missing or is not listed."""
        names = (None, *self.values, None)
        return [names[int(code)] for code in cells[:, 0]]

    def sound(self, cells: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Which rows are what `encode` makes."""
        code = cells[:, 0]
        found: npt.NDArray[np.bool_] = (code >= 0) & (code <= self.other) & (code == np.floor(code))
        return found

    def settings(self) -> dict[str, Any]:
        """As the task's file has them."""
        return {"name": self.name, "kind": self.kind, "values": list(self.values)}


Column = NumberColumn | CategoryColumn


@dataclass(frozen=True)
class TableInput(Input):
    """Rows of named columns, as a hospital's table has them."""

    columns: tuple[Column, ...]
    label: str
    ignored: tuple[str, ...] = ()
    identifier: str = ""
    """The column by which an agent knows a record again; it is no input, and never sent."""
    kind: ClassVar[str] = "table"
    dtype: ClassVar[np.dtype[Any]] = np.dtype("<f4")

    @classmethod
    def parse(cls, section: Section) -> TableInput:
        """From a task's file."""
        label, ignored = section.text("label"), section.texts("ignored", ())
        identifier = section.text("identifier") if section.has("identifier") else ""
        columns = tuple(_column(one) for one in section.sections("columns"))
        if not 0 < len(columns) <= MAX_COLUMNS:
            raise TaskError(f"a table has 1 to {MAX_COLUMNS:,} columns beside its label")
        named = (identifier,) if identifier else ()
        check_different((label, *named, *ignored, *(c.name for c in columns)), "input.columns")
        return cls(columns, label, ignored, identifier)

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(column.width for column in self.columns),)

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"label": self.label}
        if self.ignored:
            settings["ignored"] = list(self.ignored)
        if self.identifier:
            settings["identifier"] = self.identifier
        return settings | {"columns": [column.settings() for column in self.columns]}

    def encode(self, values: Mapping[str, Sequence[Any]]) -> npt.NDArray[np.float32]:
        """Rows for the wire from columns by name: numbers, or texts of categories; None is
        missing."""
        cells = [column.encode(values[column.name]) for column in self.columns]
        return np.ascontiguousarray(np.concatenate(cells, axis=1))

    def decode(self, rows: npt.NDArray[np.float32]) -> dict[str, list[Any]]:
        """Columns by name, from rows of the wire."""
        self.check(rows)
        return {
            column.name: column.decode(cells)
            for column, cells in zip(self.columns, self.cells(rows), strict=True)
        }

    def cells(self, rows: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
        """What each column has of the rows."""
        ends = np.cumsum([column.width for column in self.columns])
        return np.split(rows, ends[:-1], axis=1)

    def sound(self, rows: Array) -> npt.NDArray[np.bool_]:
        sound = np.ones(len(rows), dtype=np.bool_)
        for column, cells in zip(self.columns, self.cells(rows), strict=True):
            sound &= column.sound(cells)
        return sound


def _column(section: Section) -> Column:
    """A column of a task's file."""
    name, kind = section.text("name"), section.text("kind")
    column: Column
    if kind == NumberColumn.kind:
        center = section.number("center", -MAX_SIZE, MAX_SIZE)
        column = NumberColumn(name, center, section.number("scale", 0.0, MAX_SIZE))
    elif kind == CategoryColumn.kind:
        column = CategoryColumn(name, section.texts("values"))
        if not 0 < len(column.values) <= MAX_CATEGORIES:
            raise TaskError(f"{section.name_of('values')} must have 1 to {MAX_CATEGORIES:,} values")
    else:
        raise TaskError(f'{section.name_of("kind")} must be "number" or "category"')
    section.done()
    return column


@dataclass(frozen=True)
class TextInput(Input):
    """Texts, as bytes of UTF-8 that are filled up with zeros."""

    max_bytes: int
    text: str
    label: str
    kind: ClassVar[str] = "text"
    dtype: ClassVar[np.dtype[Any]] = np.dtype("u1")

    @classmethod
    def parse(cls, section: Section) -> TextInput:
        """From a task's file."""
        text, label = section.text("text"), section.text("label")
        check_different((text, label), "input")
        return cls(section.integer("max_bytes", 1, MAX_ROW_BYTES), text, label)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.max_bytes,)

    def settings(self) -> dict[str, Any]:
        return {"text": self.text, "label": self.label, "max_bytes": self.max_bytes}

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.uint8]:
        """Rows for the wire; a text that is too long is cut at its end, between characters."""
        rows = np.zeros((len(texts), self.max_bytes), dtype=np.uint8)
        for row, text in zip(rows, texts, strict=True):
            data = text.replace("\0", " ").encode("utf-8", "replace")
            if len(data) > self.max_bytes:
                data = data[: self.max_bytes].decode("utf-8", "ignore").encode("utf-8")
            row[: len(data)] = np.frombuffer(data, dtype=np.uint8)
        return rows

    def decode(self, rows: npt.NDArray[np.uint8]) -> list[str]:
        """The texts of rows of the wire."""
        return [row.tobytes().rstrip(b"\0").decode("utf-8", "replace") for row in rows]


INPUTS = {one.kind: one for one in (VectorInput, ImageInput, TableInput, TextInput)}


def parse_input(section: Section) -> Input:
    """The input of a task's file."""
    kind = section.text("kind")
    if kind not in INPUTS:
        raise TaskError(f"{section.name_of('kind')} must be one of {', '.join(INPUTS)}")
    found = INPUTS[kind].parse(section)
    section.done()
    return found
