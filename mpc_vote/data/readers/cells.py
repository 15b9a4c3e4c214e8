"""Cells of a column as numbers, categories or texts, whatever type the file has them in.

A type is of the whole column, and one record decides it: other programs write whole numbers as
floating ones as soon as a cell is empty. So what becomes of a cell depends on its value alone.

A cell is missing if it is empty, null or NaN, or holds NA, N/A, NaN or null in any case, unless the
task lists that very text as a category.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mpc_vote.data.readers.labels import Names
from mpc_vote.transport.tensors import MAX_SIZE

Cells = Any  # pa.ChunkedArray, which is generic to type checkers only
Bad = dict[int, str]

MISSING = ("", "na", "n/a", "nan", "null")
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+")
_SHOWN = 40


def numbers(cells: Cells) -> tuple[npt.NDArray[np.float64], Bad]:
    """Numbers with NaN where one is missing, and why cells hold none that a float32 can hold."""
    cells = _plain(cells)
    kind = cells.type
    if pa.types.is_boolean(kind):
        cells = cells.cast(pa.int8())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _parsed(cells)
    elif not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_null(kind)
    ):
        raise ValueError(f"it has the type {kind}, where numbers are wanted")
    return _checked(_floats(cells.cast(pa.float64(), safe=False)))


def texts(cells: Cells, *, unquote: bool = False) -> list[str | None]:
    """Texts as they are, None for null; numbers and booleans as one writes them."""
    cells = _plain(cells)
    try:
        found: list[str | None] = cells.cast(pa.string()).to_pylist()
        if pa.types.is_floating(cells.type):
            for row in np.flatnonzero(_whole(values := _floats(cells.cast(pa.float64())))):
                found[row] = str(int(values[row]))
            for row in np.flatnonzero(np.isnan(values)):
                found[row] = None
    except pa.ArrowException as error:
        raise ValueError(f"it has the type {cells.type}, where texts are wanted") from error
    return [None if text is None else unquoted(text) for text in found] if unquote else found


def unquoted(text: str) -> str:
    """A cell of a TSV file without quotes that surround all of it."""
    inner = text[1:-1]
    if len(text) < 2 or not text[0] == text[-1] == '"' or '"' in inner.replace('""', ""):
        return text
    return inner.replace('""', '"')


def categories(
    found: Sequence[str | None], known: Sequence[str]
) -> tuple[list[str | None], npt.NDArray[np.bool_]]:
    """Texts as the task spells them, None where missing; and which it does not list."""
    names = Names(known)
    spelt: dict[str | None, tuple[str | None, bool]] = {None: (None, False)}
    for text in set(found) - {None}:
        assert text is not None
        place = names.place(text)
        if place is not None:
            spelt[text] = known[place], False
        else:
            spelt[text] = (None, False) if is_missing(text) else (text, True)
    both = [spelt[text] for text in found]
    return [text for text, _ in both], np.array([other for _, other in both], dtype=np.bool_)


def is_missing(text: str | None) -> bool:
    """Whether a cell says that there is nothing."""
    return text is None or text.strip().lower() in MISSING


def _plain(cells: Cells) -> Cells:
    """Values themselves where a file has codes for them."""
    kind = cells.type
    return cells.cast(kind.value_type) if pa.types.is_dictionary(kind) else cells


def _parsed(cells: Cells) -> tuple[npt.NDArray[np.float64], Bad]:
    """Numbers of texts."""
    trimmed = pc.utf8_trim_whitespace(cells.cast(pa.string()))
    lower = pc.utf8_lower(trimmed)
    missing = pc.fill_null(pc.is_in(lower, value_set=pa.array(MISSING)), True)
    # As other programs write booleans.
    plain = pc.if_else(pc.equal(lower, "true"), "1", trimmed)
    plain = pc.if_else(pc.equal(lower, "false"), "0", plain)
    number = pc.fill_null(pc.match_substring_regex(plain, _NUMBER), False)
    given = pc.if_else(number, pc.replace_substring_regex(plain, r"^\+", ""), None)
    found = _floats(given.cast(pa.float64()))
    wrong = np.flatnonzero(~_bools(missing) & ~_bools(number))
    found, bad = _checked(found)
    texts = trimmed.take(pa.array(wrong)).to_pylist()
    return found, bad | {
        int(row): _no_number(text[:_SHOWN]) for row, text in zip(wrong, texts, strict=True)
    }


def has_decimal_comma(text: str | None) -> bool:
    """Whether it is a number as German and others write it, which is not read: 1,234 may also be
    over a thousand."""
    return text is not None and _DECIMAL_COMMA.fullmatch(text.strip()) is not None


def _no_number(text: str) -> str:
    hint = ": write a point, not a comma" if has_decimal_comma(text) else ""
    return f"{text!r} is no number{hint}"


def _checked(found: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], Bad]:
    """Refuses numbers that are out of range, and large whole ones that a float32 would round."""
    with np.errstate(invalid="ignore", over="ignore"):
        outside = np.abs(found) > MAX_SIZE
        rounded = found.astype(np.float32).astype(np.float64) != found
    bad = {
        int(row): f"{found[row]:g} is not within {MAX_SIZE:g}" for row in np.flatnonzero(outside)
    }
    for row in np.flatnonzero(_whole(found) & rounded & ~outside):
        bad[int(row)] = (
            f"{int(found[row])} is a whole number that a float32 can't hold: is it an id?"
        )
    found[list(bad)] = np.nan
    return found, bad


def _whole(found: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    return np.asarray(np.isfinite(found) & (found == np.floor(found)))


def _floats(cells: Cells) -> npt.NDArray[np.float64]:
    """A copy with NaN for null."""
    return np.array(pc.fill_null(cells, np.nan).to_numpy(), dtype=np.float64)


def _bools(cells: Cells) -> npt.NDArray[np.bool_]:
    return np.asarray(cells.to_numpy(zero_copy_only=False), dtype=np.bool_)
