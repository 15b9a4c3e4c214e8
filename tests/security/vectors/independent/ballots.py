"""Ballots, their bits and their shares, after docs/protocol.md."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from operator import xor

from tests.security.vectors.independent.streams import WORD, Given, Refused, Stream, from_hex, pack


def unit_of(fraction_bits: int) -> int:
    """A vote."""
    if not 0 <= fraction_bits <= 24:
        raise Refused("too fine")
    return 1 << fraction_bits


def one_hot(given: Given) -> Given:
    classes, unit = range(given["classes"]), unit_of(given["fraction_bits"])
    if any(label not in (-1, *classes) for label in given["labels"]):
        raise Refused("no such class")
    return {"ballot": [[unit * (label == c) for c in classes] for label in given["labels"]]}


def knn_frequency(given: Given) -> Given:
    """Of one vote, split among the public k."""
    return {"ballot": [[cell // given["k"] for cell in row] for row in neighbours(given)]}


def knn_count(given: Given) -> Given:
    return {"ballot": neighbours(given)}


def neighbours(given: Given) -> list[list[int]]:
    """A vote for each."""
    unit = unit_of(given["fraction_bits"])
    if any(min(row) < 0 or sum(row) > given["k"] for row in given["counts"]):
        raise Refused("no such neighbours")
    return [[unit * count for count in row] for row in given["counts"]]


def multi_label(given: Given) -> Given:
    tau, unit = given["tau"], unit_of(given["fraction_bits"])
    if tau < 1:
        raise Refused("no yes at all")
    rows = []
    for scores in given["scores"]:
        # Sorting keeps the order of what is equal.
        best = sorted(range(len(scores)), key=lambda place: -scores[place])[:tau]
        yes = [place in best and score > 0.5 for place, score in enumerate(scores)]
        rows.append([unit * said for said in yes])
    return {"ballot": rows}


def encode(given: Given) -> Given:
    layout = given["layout"]
    classes, unit = layout["classes"], layout["unit"]
    attributes, votes = layout["attributes"], layout["votes"]
    pointer_bits = 0 if attributes else classes.bit_length()
    rows = []
    for ballot, order in zip(given["ballot"], given["orders"], strict=True):
        if any(cell < 0 or cell % unit for cell in ballot) or sum(ballot) > votes * unit:
            raise Refused("no ballot")
        if attributes:
            if max(ballot) > unit:
                raise Refused("no ballot")
            row = [cell // unit for cell in ballot]
        else:
            cast = [c for c, cell in enumerate(ballot) for _ in range(cell // unit)]
            cast += [classes] * (votes - len(cast))
            row = [cast[place] >> bit & 1 for place in order for bit in range(pointer_bits)]
        rows.append(row)
    pointers = 0 if attributes else votes
    return {
        "pointers": pointers,
        "pointer_bits": pointer_bits,
        "flags": len(rows[0]) - pointers * pointer_bits,
        "bits": ["".join(map(str, row)) for row in rows],
        "packed": pack([bit for row in rows for bit in row], 1).hex(),
    }


def law(given: Given) -> Given:
    """The coins of a cell, by the rule in docs/protocol.md: Coins."""
    sigma = Fraction(given["sigma"])
    if not Fraction("0.05") <= Fraction(str(given["sigma"])) <= 20_000:
        raise Refused("not drawn")
    top = 48 if sigma >= 1 else max(48, ceiling((8 + 1 / sigma) ** 2))
    bits = 0
    while quarters(sigma, bits) < max(60, top):
        bits += 1
    wanted = quarters(sigma, bits)
    found = []
    for power in range(24):
        for heaviest in (2**power, 3 * 2**power):
            numbers = lighter(heaviest)
            left = wanted - sum(w * w * n for w, n in numbers.items())
            if left < top * heaviest**2:
                continue
            numbers[heaviest] = 0
            for weight in sorted(numbers, reverse=True):
                numbers[weight] += left // weight**2
                left %= weight**2
            if 60 <= sum(numbers.values()) <= 4096:
                found.append(sorted(numbers.items()))
    best = min(found, key=lambda levels: sum(n for _, n in levels))
    return {
        "fraction_bits": bits,
        "levels": [list(level) for level in best],
        "reach": sum(w * n for w, n in best) // 2,
        "variance_quarters": sum(w * w * n for w, n in best),
    }


def lighter(heaviest: int) -> dict[int, int]:
    """The weights below the heaviest, with the least number of coins of each."""
    numbers = {}
    weight = heaviest
    while weight % 2 == 0:
        weight //= 2
        numbers[weight] = 4
    if heaviest % 3 == 0:
        few = 7 + len(f"{heaviest:b}") // 3
        numbers |= {1: few, 2: few}
    return numbers


def quarters(sigma: Fraction, bits: int) -> int:
    """The least even number that is not below 4 sigma^2, in units."""
    return 2 * ceiling(2 * sigma**2 * 4**bits)


def ceiling(number: Fraction) -> int:
    return -(-number.numerator // number.denominator)


def with_residual(seeds: Sequence[str], parties: int, explicit: int, packed: bytes) -> list[Given]:
    """Shares by rank."""
    shares = [{"seed": seed} for seed in seeds]
    shares.insert(explicit, {"packed": packed.hex()})
    assert len(shares) == parties
    return shares


def check_ranks(parties: int, explicit: int) -> None:
    if parties < 2 or not 0 <= explicit < parties:
        raise Refused("no such rank")


def split(given: Given) -> Given:
    values, parties, explicit, bits = (
        given[name] for name in ("values", "parties", "explicit", "bits")
    )
    check_ranks(parties, explicit)
    expanded = [Stream(bytes.fromhex(s)).values(len(values), bits) for s in given["seeds"]]
    residual = [
        (value - sum(column)) % (1 << bits)
        for value, *column in zip(values, *expanded, strict=True)
    ]
    shares = with_residual(given["seeds"], parties, explicit, pack(residual, bits))
    return {
        "shares": shares,
        "numbers": [*expanded[:explicit], residual, *expanded[explicit:]],
    }


def split_bits(given: Given) -> Given:
    check_ranks(given["parties"], given["explicit"])
    residual = pack(given["bits"], 1)
    for seed in given["seeds"]:
        residual = bytes(map(xor, residual, Stream(bytes.fromhex(seed)).bytes(len(residual))))
    return {"shares": with_residual(given["seeds"], given["parties"], given["explicit"], residual)}


def zero_share(given: Given) -> Given:
    return {"shares": zero_shares(from_hex(given["seeds"]), given["counts"])}


def zero_shares(seeds: Sequence[bytes], counts: Sequence[int]) -> list[list[list[int]]]:
    """By rank and use."""
    shares = []
    for rank in range(len(seeds)):
        after, before = Stream(seeds[rank]), Stream(seeds[rank - 1])
        pairs = [zip(after.words(count), before.words(count), strict=True) for count in counts]
        shares.append([[(a - b) % (1 << WORD) for a, b in of] for of in pairs])
    return shares
