"""What a level's preprocessing has to be, from its definition, entry by entry, and not from its
code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.argmax.table.comparison import Comparisons
from mpc_vote.argmax.table.level import LevelPart, LevelTables
from mpc_vote.argmax.table.marks import MarkPart
from mpc_vote.mpc.prg import new_seed

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Secrets:
    """What only the dealer knows of a level: the masks, and the flips of the truth tables."""

    r: Array
    s: Array
    q: Array | None
    alpha: Array
    beta: Array


def seeds_for(parties: int) -> list[bytes]:
    return [new_seed() for _ in range(parties)]


def deal(level: LevelTables, seeds: Sequence[bytes], index: int = 0) -> list[LevelPart]:
    """All parties' parts."""
    free = [level.expand(seed, index, None) for seed in seeds[:-1]]
    return [*free, level.expand(seeds[-1], index, level.correct(seeds, index))]


def added(shares: Sequence[Array], bits: int) -> Array:
    """What is shared modulo 2^bits."""
    total: Array = np.add.reduce([share.astype(np.uint64) for share in shares])
    return total & np.uint64((1 << bits) - 1)


def xored(shares: Sequence[Array]) -> Array:
    """What is shared by xor."""
    together: Array = np.bitwise_xor.reduce(list(shares))
    return together


def tables_together(parts: Sequence[LevelPart | MarkPart]) -> Array:
    """The truth tables that are shared by xor, in words of one size."""
    return np.stack(
        [xored(shares).astype(np.uint64) for shares in zip(*[p.tables for p in parts], strict=True)]
    )


def differences(level: Comparisons[Any], values: Array) -> Array:
    """Of each pair of contestants, modulo 2^bits."""
    found: Array = np.stack([values[i] - values[j] for i, j in combinations(range(level.group), 2)])
    return found.astype(np.uint64) & np.uint64((1 << level.bits) - 1)


def digit(values: Array, shift: int, width: int) -> Array:
    return (values >> np.uint64(shift)) & np.uint64((1 << width) - 1)


def read(level: LevelTables, parts: Sequence[LevelPart]) -> Secrets:
    """The secrets, from the parts of all parties."""
    r = added([part.r for part in parts], level.bits)
    q = [part.q for part in parts if part.q is not None]
    tables = tables_together(parts)
    rho, count = differences(level, r), len(level.digits)
    alpha, beta = [], []
    for k, (shift, width) in enumerate(level.digits):
        # No digit is above the largest, so what is found there is the flip alone.
        alpha.append((tables[k] >> np.uint64((1 << width) - 1)) & np.uint64(1))
        if k < count - 1:
            other = digit(rho, shift, width) ^ np.uint64(1)
            beta.append((tables[count + k] >> other) & np.uint64(1))
    return Secrets(
        r,
        added([part.s for part in parts], level.win_bits),
        added(q, level.label_bits) if q else None,
        np.stack(alpha),
        np.stack(beta) if beta else np.zeros((0, *rho.shape), np.uint64),
    )


def tables_of(level: Comparisons[Any], secrets: Secrets) -> Array:
    """Truth tables of `less` and then of `equal`, flipped, in the low bits of words."""
    rho = differences(level, secrets.r)
    flips = [*secrets.alpha, *secrets.beta]
    rows = [(k, True) for k in range(len(level.digits))]
    rows += [(k, False) for k in range(len(level.digits) - 1)]
    words = np.zeros((len(rows), *rho.shape), np.uint64)
    for word, flip, (k, less) in zip(words, flips, rows, strict=True):
        shift, width = level.digits[k]
        of_rho = digit(rho, shift, width)
        for x in range(1 << width):
            holds = np.uint64(x) < of_rho if less else np.uint64(x) == of_rho
            word |= (holds.astype(np.uint64) ^ flip) << np.uint64(x)
    return words


def used_bits(level: Comparisons[Any]) -> Array:
    """Which bits of each word of a truth table are ever looked up."""
    widths = [width for _, width in level.digits]
    return np.array(
        [(1 << (1 << width)) - 1 for width in [*widths, *widths[:-1]]], dtype=np.uint64
    )[:, None, None]


def nu_of(level: Comparisons[Any], secrets: Secrets) -> Array:
    return differences(level, secrets.r) >> np.uint64(level.bits - 1)


def y_of(level: Comparisons[Any], secrets: Secrets, less: Array, equal: Array) -> Array:
    """What flips the top bit of a public difference, if these bits were opened."""
    nu = nu_of(level, secrets).astype(np.int64)
    borrow, above = np.zeros_like(nu), np.ones_like(nu)
    for k in range(len(level.digits)):
        borrow += above * (secrets.alpha[k].astype(np.int64) ^ less[k])
        if k < len(level.digits) - 1:
            above *= secrets.beta[k].astype(np.int64) ^ equal[k]
    found: Array = nu + (1 - 2 * nu) * borrow
    return found


def coefficients_of(level: Comparisons[Any], secrets: Secrets) -> Array:
    """Those of y as a polynomial in the opened bits, by inversion over all subsets of a term's."""
    digits = len(level.digits)
    terms: list[tuple[int, int | None]] = [(chosen, None) for chosen in range(1 << (digits - 1))]
    terms += [(chosen, k) for k in range(digits) for chosen in range(1 << k)]
    found = []
    for chosen, k in terms:
        places = [("equal", j) for j in range(digits) if chosen >> j & 1]
        places += [] if k is None else [("less", k)]
        total = np.zeros_like(nu_of(level, secrets).astype(np.int64))
        for size in range(len(places) + 1):
            for ones in combinations(places, size):
                less = np.array([int(("less", j) in ones) for j in range(digits)])
                equal = np.array([int(("equal", j) in ones) for j in range(digits)])
                total += (-1) ** (len(places) - size) * y_of(level, secrets, less, equal)
        found.append(total)
    return np.stack(found)


def chosen_of(level: LevelTables, secrets: Secrets) -> list[Array]:
    """Over the masked number of wins: hot, then what is to be carried times hot."""
    masked = np.arange(1 << level.win_bits, dtype=np.uint64)[:, None, None]
    wins = (masked - secrets.s) & np.uint64((1 << level.win_bits) - 1)
    hot = (wins == level.group - 1).astype(np.uint64)
    if level.labelled:
        assert secrets.q is not None
        return [hot, hot * secrets.q] if level.last else [hot, hot * secrets.r, hot * secrets.q]
    if level.last:
        return [hot * np.arange(level.group, dtype=np.uint64)[:, None]]
    return [hot, hot * secrets.r]


def modulo(values: Array, bits: int) -> Array:
    """Integers of any sign as representatives from 0."""
    words: Array = values.astype(np.int64).view(np.uint64)
    return words & np.uint64((1 << bits) - 1)


def missing_part(level: LevelTables, secrets: Secrets, others: Sequence[LevelPart]) -> LevelPart:
    """The part that makes the others' complete: where the dealer is free to choose the secrets."""
    like = others[0]

    def rest(truth: Array, shares: Sequence[Array]) -> Array:
        left: Array = truth.astype(np.uint64) - np.add.reduce([s.astype(np.uint64) for s in shares])
        return left.astype(shares[0].dtype)

    q = [part.q for part in others if part.q is not None]
    tables = tables_of(level, secrets)
    chosen = chosen_of(level, secrets)
    return LevelPart(
        r=rest(secrets.r, [part.r for part in others]),
        s=rest(secrets.s, [part.s for part in others]),
        q=None if secrets.q is None else rest(secrets.q, q),
        tables=tuple(
            xored([table.astype(own.dtype), *[part.tables[number] for part in others]])
            for number, (table, own) in enumerate(zip(tables, like.tables, strict=True))
        ),
        coefficients=rest(
            coefficients_of(level, secrets).view(np.uint64), [part.coefficients for part in others]
        ),
        chosen=tuple(
            rest(table, [part.chosen[number] for part in others])
            for number, table in enumerate(chosen)
        ),
    )
