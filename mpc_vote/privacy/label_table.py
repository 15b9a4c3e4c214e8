"""Certificates of labels for the noise in use: shipped, as flips take seconds each.

Nothing is certified while a service runs: of the noise that is not in the table, what is in it
counts. Noise that includes other noise beside something independent hides no less: what is beside
it shifts the votes of a cell in both worlds alike, and a label is a mixture over it. So a law of
coins hides what any law with some of its coins does, and Skellam noise what that of a lower
variance does. `tools/label_certificates.py` makes the table, tests check it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources
from typing import TypeAlias

from mpc_vote.privacy.certificates import Certificate
from mpc_vote.privacy.coins import CoinLaw
from mpc_vote.privacy.gdp import skellam_law
from mpc_vote.privacy.label_steps import Seen
from mpc_vote.privacy.profiles import FloatArray

LABEL_SLACK = 2.0**-44
"""Of every certificate in the table."""

FILE = "label_certificates.json"

Noise: TypeAlias = CoinLaw | float
"""Of a cell: coins, or the variance of Skellam noise in units^2."""


@dataclass(frozen=True)
class Entry:
    """What is certified: a cell or two that move by so many units, under noise of a law."""

    seen: Seen
    noise: Noise
    move: int
    certificate: Certificate

    @property
    def law(self) -> FloatArray:
        """Of the noise."""
        return (
            skellam_law(self.noise)
            if isinstance(self.noise, float)
            else (self.noise.probabilities())
        )


def label_certificate(seen: Seen, noise: Noise, move: int) -> Certificate | None:
    """The best one in the table that holds under this noise, if any does."""
    return _best(seen, noise, move)


@lru_cache(maxsize=1 << 12)
def _best(seen: Seen, noise: Noise, move: int) -> Certificate | None:
    held = [
        one.certificate
        for one in table()
        if (one.seen, one.move) == (seen, move) and includes(noise, one.noise)
    ]
    return min(held, key=lambda certificate: certificate.costs[-1], default=None)


def includes(noise: Noise, other: Noise) -> bool:
    """Whether noise is other noise and something independent."""
    if isinstance(noise, CoinLaw) and isinstance(other, CoinLaw):
        numbers = dict(noise.levels)
        return all(numbers.get(weight, 0) >= number for weight, number in other.levels)
    return isinstance(noise, float) and isinstance(other, float) and other <= noise


@cache
def table() -> tuple[Entry, ...]:
    """All that is shipped."""
    return read(resources.files("mpc_vote.privacy").joinpath(FILE).read_text())


@cache
def usual_laws() -> frozenset[CoinLaw]:
    """Of coins, that something in the table is about."""
    return frozenset(one.noise for one in table() if isinstance(one.noise, CoinLaw))


def read(text: str) -> tuple[Entry, ...]:
    """What `written` wrote."""
    return tuple(
        Entry(
            Seen(one["seen"]),
            CoinLaw(tuple((w, n) for w, n in one["coins"])) if "coins" in one else one["variance"],
            one["move"],
            Certificate(tuple(one["floors"]), tuple(one["costs"]), LABEL_SLACK),
        )
        for one in json.loads(text)
    )


def written(entries: Sequence[Entry]) -> str:
    """A line of JSON for each."""
    lines = [
        json.dumps(
            {
                "seen": one.seen,
                "move": one.move,
                **(
                    {"coins": one.noise.levels}
                    if isinstance(one.noise, CoinLaw)
                    else {"variance": one.noise}
                ),
                "floors": one.certificate.floors,
                "costs": one.certificate.costs,
            }
        )
        for one in entries
    ]
    return "[\n" + ",\n".join(lines) + "\n]\n"
