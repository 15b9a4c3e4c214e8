"""Tables in files, before anything is made of their cells: CSV, TSV, Parquet, lines of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from mpc_vote.data.readers.records import Line

if TYPE_CHECKING:
    import pyarrow as pa


_ALIKE = 0.8
"""How alike a column's name must be to one that is missing to be meant, of 1."""


@dataclass(frozen=True, eq=False)
class Sheet:
    """Named columns, where each row is from, and rows that are not whole, with the reason."""

    path: Path
    table: pa.Table
    lines: Sequence[Line]
    bad: Mapping[int, str] = field(default_factory=dict)
    quoted: bool = False
    """Whether quotes around a cell are still there, as in TSV files."""
    delimiter: str = ","
    """What a CSV file has between its cells, with which it is written again."""
    nested: Mapping[str, str] = field(default_factory=dict)
    """Columns of a Parquet file with several values in a cell, which are not read: their types."""

    def __post_init__(self) -> None:
        names = self.table.column_names
        twice = sorted(name for name, times in Counter(names).items() if times > 1)
        if twice:
            raise ValueError(
                f"two columns have the name {', '.join(map(repr, twice))}: rename or remove one"
            )

    def no_single_values(self, name: str) -> str:
        """Why a column of several values in a cell can't be used."""
        return f"column {name!r} holds {self.nested[name]}, not one value a row"


def meant(name: str, names: Iterable[str]) -> str | None:
    """The column that is most like one that is missing, whatever the case; None if none is."""
    alike = {one.strip().casefold(): one for one in names}
    near = get_close_matches(name.strip().casefold(), alike, n=1, cutoff=_ALIKE)
    return alike[near[0]] if near else None


def read_sheet(path: Path) -> Sheet:
    """The table in a file, by its ending."""
    if path.is_dir():
        raise ValueError(f"{path}: it is a folder, where a table is wanted: .csv, .tsv or .parquet")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    match path.suffix.lower():
        case ".csv":
            from mpc_vote.data.readers.delimited import read_csv

            return read_csv(path)
        case ".tsv" | ".tab":
            from mpc_vote.data.readers.delimited import read_tsv

            return read_tsv(path)
        case ".parquet":
            from mpc_vote.data.readers.parquet import read_parquet

            return read_parquet(path)
    raise ValueError(f"{path}: a table is read from .csv, .tsv or .parquet")
