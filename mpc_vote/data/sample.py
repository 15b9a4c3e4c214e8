"""The inputs and classes of a task, drafted from a public sample.

Everything here ends up in a file that all who take part can read, and every vote depends on it. So
the sample must be public: scales or categories of private records would cost privacy that nobody
accounts for.

A number's center and scale are its mean and standard deviation, after values outside the 1st and
99th percentiles were brought to those: a typing error must not set a scale. Where a column has two
values only, such as 0 and 1, its scale puts them as far apart as two categories.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mpc_vote.data.identifiers import is_identifier
from mpc_vote.data.readers.labels import SEPARATOR, canonical
from mpc_vote.data.readers.sheet import Sheet, meant
from mpc_vote.tasks import (
    CategoryColumn,
    Column,
    ImageInput,
    Input,
    NumberColumn,
    TableInput,
    TextInput,
)
from mpc_vote.tasks.parsing import MAX_TEXT
from mpc_vote.transport.tensors import MAX_SIZE

if TYPE_CHECKING:
    from mpc_vote.data.readers.cells import Cells

MAX_LABELS = 1_000
"""Different labels beyond which a column is taken for no class."""

PICTURE_SIDE = 224
"""What pictures of mixed or larger sizes are scaled to: what a backbone sees."""

_USUAL = (0.01, 0.99)
_WORDS = 3  # on average, from which a column is free text
_DISTINCT = 0.9  # of the rows have values of their own: identifiers, names, dates
_FEW = 20  # rows from which that says something
_BYTES = (64, 4_096)
_MANY = 20  # different numbers from which labels look like a measurement
_DATE = re.compile(
    r"(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}([./-])\d{1,2}\2(\d{4}|\d{2})|\d{4}/\d{1,2}/\d{1,2})([T ].*)?"
)


@dataclass
class Draft:
    """What a sample says, and what its owner should know about that."""

    input: Input
    classes: list[str]
    rows: int
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Wishes:
    """What whoever drafts has said beforehand."""

    label: str | None = None
    text: str | None = None
    classes: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    """Columns to take for categories even if they hold numbers."""
    max_categories: int = 50
    size: tuple[int, int] | None = None
    """Height and width of pictures."""
    attributes: bool = False
    """Whether a label names attributes, any number of them, with semicolons between them."""
    identifier: str = ""
    """The column that members' tables have identifiers in; the sample may have it, too."""


def draft_sheet(sheet: Sheet, wishes: Wishes) -> Draft:
    """A table or texts."""
    names = [*sheet.table.column_names, *sheet.nested]
    if wishes.label is None:
        raise ValueError(f"say which column has the labels (--label): one of {_listed(names)}")
    # Unlabelled rows will do where the classes are said.
    label = () if wishes.classes else (wishes.label,)
    for name in (*label, *wishes.ignored, *wishes.categories, *filter(None, [wishes.text])):
        if name not in names:
            near = meant(name, names)
            hint = (
                "; if its rows have no labels, name the classes with --classes"
                if name in label
                else ""
            )
            raise ValueError(
                f"{sheet.path}: it has no column {name!r}"
                f"{f' (is it {near!r}?)' if near else ''}, only {_listed(names)}{hint}"
            )
    if sheet.table.num_rows == 0:
        raise ValueError(f"{sheet.path}: it has no rows")
    if sheet.bad:
        place, why = min(sheet.bad.items())
        raise ValueError(f"{sheet.path}: line {sheet.lines[place]}: {why}")
    for name in (wishes.label, *wishes.categories, *filter(None, [wishes.text])):
        if name in sheet.nested:
            raise ValueError(f"{sheet.path}: {sheet.no_single_values(name)}")
    known = (wishes.label, wishes.identifier, *wishes.ignored)
    rest = [name for name in sheet.table.column_names if name not in known]
    text = wishes.text
    if text is None and len(rest) == 1 and _is_prose(_texts(sheet, rest[0])):
        text = rest[0]
    classes, notes = _classes(sheet, wishes)
    schema = _table(sheet, rest, wishes, notes) if text is None else _text(sheet, text, wishes)
    return Draft(schema, classes, sheet.table.num_rows, notes)


def draft_lines(path: Path, wishes: Wishes) -> Draft:
    """Texts of a file without labels, one to a line."""
    from mpc_vote.data.readers.delimited import read_lines

    if not wishes.classes:
        raise ValueError(f"{path}: it has no labels: name the classes with --classes")
    named = replace(wishes, label=wishes.label or "label")
    sheet = read_lines(path, wishes.text or "text")
    schema = _text(sheet, wishes.text or "text", named)
    return Draft(schema, list(wishes.classes), sheet.table.num_rows)


def draft_pictures(folder: Path, wishes: Wishes) -> Draft:
    """Pictures of a folder for each class."""
    from PIL import Image

    from mpc_vote.data.readers.pictures import FORMATS, find

    files, labels = find(folder)
    if labels is None and not wishes.classes:
        raise ValueError(
            f"{folder}: name the classes with --classes, or give a folder of pictures for each"
        )
    sizes, grey = set(), True
    for file in files:
        try:
            with Image.open(file, formats=FORMATS) as opened:
                sizes.add((opened.height, opened.width))
                grey &= opened.mode in ("1", "L", "I", "I;16")
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise ValueError(f"{file}: not a picture that can be read ({error})") from error
    notes = []
    if wishes.size is not None:
        height, width = wishes.size
    elif len(sizes) == 1 and max(*(only := next(iter(sizes)))) <= PICTURE_SIDE:
        height, width = only
    else:
        height = width = PICTURE_SIDE
        notes.append(
            f"the pictures have {len(sizes)} different sizes: each is scaled to cover "
            f"{height}x{width} and cut evenly at its edges"
        )
    classes = list(wishes.classes) or sorted(set(labels or ()))
    return Draft(ImageInput(height, width, 1 if grey else 3), classes, len(files), notes)


def _classes(sheet: Sheet, wishes: Wishes) -> tuple[list[str], list[str]]:
    """The classes in order, and what is odd about them."""
    from mpc_vote.data.readers.cells import is_missing

    assert wishes.label is not None
    if wishes.label not in sheet.table.column_names:
        return list(wishes.classes), []
    cells = _texts(sheet, wishes.label)
    parts = (text.split(SEPARATOR) if wishes.attributes else [text] for text in cells if text)
    counts = Counter(canonical(part) for found in parts for part in found if part.strip())
    found = sorted(counts, key=_in_order)
    notes = []
    if wishes.classes:
        unknown = [name for name in found if name not in set(map(canonical, wishes.classes))]
        if found and unknown == found:
            raise ValueError(
                f"{sheet.path}: no label in column {wishes.label!r} is one of the classes that "
                f"--classes names: the labels are {_listed(found)}"
            )
        if unknown:
            notes.append(f"labels of the sample that are none of the classes: {_listed(unknown)}")
        return list(wishes.classes), notes
    if len(found) > MAX_LABELS or len(found) > len(cells) // 2 > _FEW:
        raise ValueError(
            f"{sheet.path}: column {wishes.label!r} has {len(found):,} different values in "
            f"{len(cells):,} rows: is it a class? Name the classes with --classes if it is"
        )
    if len(found) > _MANY and all(map(_is_number, found)):
        notes.append(
            f"{wishes.label!r} has {len(found)} different numbers, and each became a class: if it "
            "is a measurement, make a column of a few classes from it, such as low and high"
        )
    odd = [name for name in found if is_missing(name)]
    if odd:
        notes.append(
            f"the label {odd[0]!r} became a class: name the classes with --classes if it is none"
        )
    return found, notes


def _table(sheet: Sheet, names: Sequence[str], wishes: Wishes, notes: list[str]) -> TableInput:
    columns: list[Column] = []
    left_out = list(wishes.ignored)
    for name, kind in sheet.nested.items():
        if name not in left_out:
            notes.append(f"{name!r} is left out: it holds {kind}, not one value a row")
            left_out.append(name)
    for name in names:
        column, note = _column(sheet, name, wishes)
        if note:
            notes.append(f"{name!r} {note}")
        if column is None:
            left_out.append(name)
        else:
            columns.append(column)
    if not columns:
        raise ValueError(f"{sheet.path}: no column is left beside the label: {'; '.join(notes)}")
    assert wishes.label is not None
    return TableInput(tuple(columns), wishes.label, tuple(left_out), wishes.identifier)


def _column(sheet: Sheet, name: str, wishes: Wishes) -> tuple[Column | None, str]:
    """A column as the task has it, or None if it is of no use, and what to know about it."""
    from mpc_vote.data.readers.cells import numbers

    if name not in wishes.categories:
        try:
            values, bad = numbers(_cells(sheet, name))
        except ValueError as error:
            return None, f"is left out: {error}"
        if not bad:
            return _number(name, values)
        if len(bad) < len(values) // 10 and np.isfinite(values).any():
            return _number(name, values, f"has {len(bad)} cells that are no usable numbers")
        _check_points(sheet, name, len(bad))
        if _are_dates(_texts(sheet, name)):
            return None, "is left out: it holds dates; give what follows from them, such as an age"
    return _category(name, _texts(sheet, name), wishes.max_categories)


def _are_dates(texts: Sequence[str | None]) -> bool:
    """Whether most cells that hold anything hold a date, with or without a time."""
    given = [text.strip() for text in texts if text and text.strip()]
    return 2 * sum(_DATE.fullmatch(text) is not None for text in given) > len(given)


def _check_points(sheet: Sheet, name: str, bad: int) -> None:
    """Refuses numbers with a decimal comma, which would become categories."""
    from mpc_vote.data.readers.cells import has_decimal_comma

    texts = _texts(sheet, name)
    commas = [place for place, text in enumerate(texts) if has_decimal_comma(text)]
    if 2 * len(commas) > bad:
        raise ValueError(
            f"{sheet.path}: line {sheet.lines[commas[0]]}: column {name!r} has numbers with a "
            f"decimal comma, such as {texts[commas[0]]!r}: write them with a point here and in all "
            "members' data (in a spreadsheet, set the language to English and save again; in "
            f"pandas, read_csv with decimal=','), or pass --category {name} if they are codes"
        )


def _number(
    name: str, values: npt.NDArray[np.float64], note: str = ""
) -> tuple[Column | None, str]:
    there = values[np.isfinite(values)]
    if len(there) == 0:
        return None, "is left out: it is empty in the sample"
    center, scale = center_and_scale(there)
    if not 0 < scale < MAX_SIZE:
        return None, "is left out: it is the same everywhere in the sample"
    whole = bool((there == np.round(there)).all())
    distinct = len(np.unique(there)) / len(there)
    if whole and len(there) >= _FEW:
        if (is_identifier(name) and distinct > _DISTINCT) or _is_serial(there):
            return None, "is left out: it looks like an identifier, which says nothing about others"
        if is_identifier(name) or distinct == 1:
            note = "looks like an identifier: leave it out (--ignore) if it is one"
    return NumberColumn(name, _rounded(center), _rounded(scale)), note


def _is_serial(there: npt.NDArray[np.float64]) -> bool:
    """Whether whole numbers are all different and nearly all used, as if somebody had counted."""
    return len(np.unique(there)) == len(there) and bool(np.ptp(there) < 1.25 * len(there))


def center_and_scale(there: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Of a public column's numbers, of which there is at least one; a scale of 0 is of no use."""
    if len(np.unique(there)) == 2:
        return float(there.mean()), float(np.ptp(there)) / math.sqrt(2)
    within = np.clip(there, *np.quantile(there, _USUAL))
    usual = within if np.ptp(within) > 0 else there
    return float(usual.mean()), float(usual.std())


def _category(name: str, texts: Sequence[str | None], limit: int) -> tuple[Column | None, str]:
    from mpc_vote.data.readers.cells import is_missing

    counts = Counter(text.strip() for text in texts if text is not None and not is_missing(text))
    there = sum(counts.values())
    if len(counts) > _DISTINCT * there and there >= _FEW:
        return None, "is left out: nearly all of its values are different, as names and dates are"
    usable = [text for text in counts if len(text) <= MAX_TEXT and text.isprintable()]
    if not usable:
        return None, "is left out: it is empty in the sample"
    values = sorted(usable, key=lambda text: (-counts[text], text))[:limit]
    notes = []
    if rest := len(usable) - len(values):
        notes.append(f"has {rest} rarer values")
    if odd := len(counts) - len(usable):
        notes.append(f"has {odd} values of over {MAX_TEXT} characters or of none that are printed")
    note = f'{" and ".join(notes)}, which become "any other"' if notes else ""
    return CategoryColumn(name, tuple(sorted(values, key=_in_order))), note


def _text(sheet: Sheet, column: str, wishes: Wishes) -> TextInput:
    sizes = [len(text.encode()) for text in _texts(sheet, column) if text]
    if not sizes:
        raise ValueError(f"{sheet.path}: column {column!r} has no texts")
    wanted = float(np.quantile(sizes, 0.99))
    least, most = _BYTES
    size = least
    while size < min(wanted, most):
        size *= 2
    assert wishes.label is not None
    return TextInput(size, column, wishes.label)


def _is_prose(texts: Sequence[str | None]) -> bool:
    given = [text for text in texts if text and text.strip()]
    return bool(given) and sum(len(text.split()) for text in given) >= _WORDS * len(given)


def _in_order(text: str) -> tuple[int, float, str]:
    """Numbers by their size, then the rest by the alphabet."""
    return (0, float(text), text) if _is_number(text) else (1, 0.0, text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _rounded(value: float) -> float:
    """To four digits: nobody needs more, and people read it."""
    return float(f"{value:.4g}")


def _texts(sheet: Sheet, name: str) -> list[str | None]:
    from mpc_vote.data.readers.cells import texts

    return texts(sheet.table.column(name), unquote=sheet.quoted)


def _cells(sheet: Sheet, name: str) -> Cells:
    from mpc_vote.data.readers.tables import unquoted

    return unquoted(sheet, sheet.table.column(name))


def _listed(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more
