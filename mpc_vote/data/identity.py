"""Which record is which, whatever file it is read from: names by which contributions are counted.

Where a task names a column of identifiers, a record is what has one identifier, in every task and
after every edit. Otherwise it is its own content: a digest of its inputs as they travel, without
its label. Copies then have one name, and an edited record is a new one. Digests keep identifiers
out of the file of counters; who holds that file can still try guesses, as with the data itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

ID_BYTES = 16
"""Among a billion records two have one name by chance with a probability of 2^-69."""

IdentityArray: TypeAlias = npt.NDArray[np.void]
"""Of names, (n,); their bytes are in the order in which they sort."""

DTYPE = np.dtype((np.void, ID_BYTES))


def of_content(rows: npt.NDArray[Any]) -> IdentityArray:
    """Of records that are their inputs; the two zeros of a float are one."""
    flat = np.ascontiguousarray(rows).reshape(len(rows), -1)
    if flat.dtype.kind == "f":
        flat = flat + np.zeros(1, flat.dtype)
    kind = f"{rows.dtype.str}{rows.shape[1:]}:".encode()
    return _named("content", (kind + row.tobytes() for row in flat), len(rows))


def of_identifiers(identifiers: Sequence[str]) -> IdentityArray:
    """Of records that have identifiers, each its own."""
    return _named("identifier", (one.encode() for one in identifiers), len(identifiers))


def _named(kind: str, contents: Iterable[bytes], number: int) -> IdentityArray:
    person = kind.encode()

    def digests() -> Iterator[bytes]:
        for content in contents:
            yield hashlib.blake2b(content, digest_size=ID_BYTES, person=person).digest()

    return np.fromiter(digests(), dtype=DTYPE, count=number)
