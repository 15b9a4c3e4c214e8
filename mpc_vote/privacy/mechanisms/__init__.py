"""The private mechanisms: frozen records of what was released, and their Renyi divergence.

A curve bounds the Renyi divergence for any order above 1, in both directions between neighbours. A
new mechanism is a dataclass with the interface `BaseMechanism` in a module of its own, listed here,
so that accountants and ledgers know it; one that isn't listed is refused.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, replace
from typing import Any, TypeAlias

from mpc_vote.privacy.mechanisms.base import Decided, FloatArray, Level
from mpc_vote.privacy.mechanisms.coins import CoinRuns, CoinVote
from mpc_vote.privacy.mechanisms.subsampled_gaussian import Clipped, PoissonGaussian
from mpc_vote.privacy.mechanisms.votes import (
    GaussianScreen,
    GaussianVote,
    SkellamRuns,
    SkellamScreen,
    SkellamVote,
)
from mpc_vote.privacy.sensitivity import Sensitivity

__all__ = [
    "Clipped",
    "CoinRuns",
    "CoinVote",
    "Decided",
    "FloatArray",
    "GaussianScreen",
    "GaussianVote",
    "Level",
    "Mechanism",
    "PoissonGaussian",
    "SkellamRuns",
    "SkellamScreen",
    "SkellamVote",
    "check_mechanism",
    "mechanism_from_json",
    "one_query",
    "with_queries",
]

Mechanism: TypeAlias = (
    SkellamVote | CoinVote | GaussianVote | SkellamScreen | GaussianScreen | PoissonGaussian
)

# With what a record holds at each level.
_KINDS: dict[str, tuple[type[Mechanism], type[Sensitivity] | type[Clipped]]] = {
    SkellamVote.kind: (SkellamVote, Sensitivity),
    CoinVote.kind: (CoinVote, Sensitivity),
    GaussianVote.kind: (GaussianVote, Sensitivity),
    SkellamScreen.kind: (SkellamScreen, Sensitivity),
    GaussianScreen.kind: (GaussianScreen, Sensitivity),
    PoissonGaussian.kind: (PoissonGaussian, Clipped),
}


def one_query(mechanism: Mechanism) -> Mechanism:
    """The mechanism for a single query, so that equal ones can be counted together."""
    return with_queries(mechanism, 1)


def with_queries(mechanism: Mechanism, queries: int) -> Mechanism:
    """The mechanism for another number of queries."""
    if isinstance(mechanism, PoissonGaussian):
        return replace(mechanism, steps=queries)
    return replace(mechanism, queries=queries)


def check_mechanism(mechanism: object) -> None:
    """Refuses what this module has no bound for: an unknown loss must not count as none."""
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"no privacy bound is known for a {type(mechanism).__name__}")


def mechanism_from_json(text: str) -> Mechanism:
    """Reads `to_json` back; refuses unknown types, and fields too many or too few."""
    try:
        record = json.loads(text)
    except RecursionError as error:
        raise ValueError("a mechanism is nested too deep") from error
    if not isinstance(record, dict):
        raise ValueError("a mechanism must be a JSON object")
    kind = record.pop("type", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"unknown mechanism {kind!r}: a newer version may have written it")
    owner, part = _KINDS[kind]
    _check_fields(kind, record, owner)
    for level in ("agent", "instance"):
        unbounded = part is Clipped and record[level] is None
        if not unbounded:
            record[level] = _part(record[level], part)
    return owner(**record)


def _part(record: object, owner: type[Sensitivity] | type[Clipped]) -> Sensitivity | Clipped:
    if not isinstance(record, dict):
        raise ValueError(f"a {owner.__name__} must be a JSON object")
    _check_fields(owner.__name__, record, owner)
    return owner(**record)


def _check_fields(
    name: str,
    record: dict[str, Any],
    owner: type[Mechanism] | type[Sensitivity] | type[Clipped],
) -> None:
    """Fields with a default came later: older records go without them."""
    known = {field.name: field.default is MISSING for field in fields(owner)}
    needed = {field for field, required in known.items() if required}
    if not needed <= record.keys() <= known.keys():
        raise ValueError(f"a {name} has the fields {sorted(known)}, not {sorted(record)}")
