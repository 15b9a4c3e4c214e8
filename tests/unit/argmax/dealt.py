"""What a level's preprocessing has to be, from its definition, entry by entry, and not from its
code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.argmax.table.level import LevelPart, LevelTables
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


def differences(level: LevelTables, values: Array) -> Array:
    """Of each pair of contestants, modulo 2^bits."""
    found: Array = np.stack([values[i] - values[j] for i, j in combinations(range(level.group), 2)])
    return found.astype(np.uint64) & np.uint64((1 << level.bits) - 1)


def digit(values: Array, shift: int, width: int) -> Array:
    return (values >> np.uint64(shift)) & np.uint64((1 << width) - 1)


def read(level: LevelTables, parts: Sequence[LevelPart]) -> Secrets:
    """The secrets, from the parts of all parties."""
    r = added([part.r for part in parts], level.bits)
    q = [part.q for part in parts if part.q is not None]
    tables = xored([part.tables for part in parts]).astype(np.uint64)
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


def tables_of(level: LevelTables, secrets: Secrets) -> Array:
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


def used_bits(level: LevelTables) -> Array:
    """Which bits of each word of a truth table are ever looked up."""
    widths = [width for _, width in level.digits]
    return np.array(
        [(1 << (1 << width)) - 1 for width in [*widths, *widths[:-1]]], dtype=np.uint64
    )[:, None, None]


def nu_of(level: LevelTables, secrets: Secrets) -> Array:
    return differences(level, secrets.r) >> np.uint64(level.bits - 1)


def masks_of(level: LevelTables, secrets: Secrets) -> tuple[Array, Array]:
    """`flips` and `steps`, as integers: by digit, and then by the set of betas above it."""
    sign = 1 - 2 * nu_of(level, secrets).astype(np.int64)
    alpha, beta = secrets.alpha.astype(np.int64), secrets.beta.astype(np.int64)
    flips, steps = [], []
    for k in range(len(level.digits)):
        for chosen in range(1 << k):
            product = sign.copy()
            for j in range(k):
                if chosen >> j & 1:
                    product *= beta[j]
            # With the opened bit 0 the factor is alpha, with 1 it is 1 - alpha.
            flips.append(product * alpha[k])
            steps.append(product * (1 - alpha[k]) - product * alpha[k])
    return np.stack(flips), np.stack(steps)


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

    flips, steps = masks_of(level, secrets)
    q = [part.q for part in others if part.q is not None]
    tables = tables_of(level, secrets).astype(like.tables.dtype)
    chosen = chosen_of(level, secrets)
    return LevelPart(
        r=rest(secrets.r, [part.r for part in others]),
        s=rest(secrets.s, [part.s for part in others]),
        q=None if secrets.q is None else rest(secrets.q, q),
        tables=xored([tables, *[part.tables for part in others]]),
        nu=rest(nu_of(level, secrets), [part.nu for part in others]),
        flips=rest(flips.view(np.uint64), [part.flips for part in others]),
        steps=rest(steps.view(np.uint64), [part.steps for part in others]),
        chosen=tuple(
            rest(table, [part.chosen[number] for part in others])
            for number, table in enumerate(chosen)
        ),
    )
