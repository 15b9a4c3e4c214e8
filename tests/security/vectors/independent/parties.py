"""What parties open to each other, after docs/protocol.md, Encodings and test vectors: Openings.

All parties are played here at once, with each keeping to its own shares between two exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import Any

from tests.security.vectors.independent.ballots import zero_shares
from tests.security.vectors.independent.items import (
    Comparison,
    Level,
    added,
    correct,
    prime_from,
    residues,
    xored,
)
from tests.security.vectors.independent.streams import (
    Given,
    Stream,
    from_hex,
    joint_seed,
    pack,
    pack_planes,
    unpack,
)

Sent = list[list[str]]
ByRank = list[list[int]]


def argmax(given: Given) -> Given:
    """Contestants are lists of shares by row. Levels must be small enough to be one item each."""
    keys, bits, classes = from_hex(given["keys"]), given["bits"], given["classes"]
    label_bits = max(1, (classes - 1).bit_length())
    last, rows = len(keys) - 1, len(given["totals"][0])
    totals = [[[row[c] for row in own] for c in range(classes)] for own in given["totals"]]
    labels: list[list[list[int]]] | None = None
    sent: Sent = []
    sizes, left = level_sizes(given["groups"], classes), classes
    for depth, size in enumerate(sizes):
        left = -(-left // size)
        values = [grouped(of, left, size) for of in totals]
        carried = None if labels is None else [grouped(of, left, size) for of in labels]
        final = depth == len(sizes) - 1
        shape = [left * rows, size, bits, label_bits, depth > 0, final]
        parts = correct(["level", *shape], keys, depth)[1]
        contest = Contest(Level(shape), parts, values, carried)
        sent += contest.exchanges
        totals = [cut(own, left) for own in contest.totals]
        labels = [cut(own, left) for own in contest.labels]
        if carried is None:
            # The position in the whole is that of the group and in it: a public number.
            labels[last] = [[x + n * size for x in of] for n, of in enumerate(labels[last])]
    assert labels is not None
    zeros = zero_shares(from_hex(given["zero_seeds"]), [rows])
    shares = [added([of[0], *zero], label_bits) for of, zero in zip(labels, zeros, strict=True)]
    return {"exchanges": sent, "label_shares": shares, "labels": added(shares, label_bits)}


def level_sizes(groups: Sequence[int], classes: int) -> list[int]:
    sizes, left = [], classes
    for group in groups or [classes]:
        size = min(group, left)
        left = -(-left // size)
        sizes += [size] if size > 1 else []
    return sizes


def grouped(contestants: Sequence[list[int]], groups: int, size: int) -> ByRank:
    """By place in a group: of each group that contestant's rows."""
    full = [*contestants, *[contestants[-1]] * (groups * size - len(contestants))]
    return [[x for n in range(groups) for x in full[n * size + place]] for place in range(size)]


def cut(vectors: Sequence[int], groups: int) -> ByRank:
    """Winners by group."""
    rows = len(vectors) // groups
    return [list(vectors[n * rows : (n + 1) * rows]) for n in range(groups)]


class Compared:
    """The two exchanges that compare all pairs; totals are by rank, place and vector."""

    def __init__(self, shape: Comparison, parts: Sequence[Given]) -> None:
        self.shape, self.parts = shape, parts
        self.ranks = range(len(parts))
        self.exchanges: Sent = []

    def _send(self, payloads: Sequence[bytes]) -> None:
        self.exchanges.append([payload.hex() for payload in payloads])

    def _masked(self, values: Any, mask: str, bits: int) -> tuple[list[bytes], ByRank]:
        """What each rank sends of its shares under masks, and what is opened."""
        flat = [
            [
                (x + m) % (1 << bits)
                for xs, ms in zip(values[rank], part[mask], strict=True)
                for x, m in zip(xs, ms, strict=True)
            ]
            for rank, part in enumerate(self.parts)
        ]
        opened, size = added(flat, bits), self.shape.vectors
        sent = [pack_planes(own, bits) for own in flat]
        return sent, [opened[start : start + size] for start in range(0, len(opened), size)]

    def _look_up(self, masked: ByRank) -> None:
        shape, ring = self.shape, 1 << self.shape.bits
        vectors = range(shape.vectors)
        self.difference = [
            [(masked[i][v] - masked[j][v]) % ring for v in vectors] for i, j in shape.pairs
        ]
        digits = [*shape.digits, *shape.digits[:-1]]
        looked_up = [
            [
                part["tables"][k][p][v] >> ((d >> shift) % (1 << width)) & 1
                for k, (shift, width) in enumerate(digits)
                for p, of_pair in enumerate(self.difference)
                for v, d in enumerate(of_pair)
            ]
            for part in self.parts
        ]
        self._send([pack(bits, 1) for bits in looked_up])
        self.bits = xored(looked_up)

    def _top(self, pair: int, v: int) -> int:
        return self.difference[pair][v] >> (self.shape.bits - 1)

    def _y(self, coefficients: Any, pair: int, v: int) -> int:
        """A share of what the top bit is flipped by, if it is 1."""
        shape = self.shape
        bits = self.bits[pair * shape.vectors + v :: shape.compared]
        names = [f"a{k}" for k in range(shape.count)] + [f"e{k}" for k in range(shape.count - 1)]
        ones = {name for name, bit in zip(names, bits, strict=True) if bit}
        return sum(
            of[pair][v] for of, term in zip(coefficients, shape.terms, strict=True) if term <= ones
        )

    def _constant(self, rank: int) -> int:
        """A share of 1."""
        return int(rank == len(self.parts) - 1)


class Contest(Compared):
    """One level, from shares of totals and labels by rank, place and vector."""

    shape: Level

    def __init__(self, shape: Level, parts: Sequence[Given], values: Any, labels: Any) -> None:
        super().__init__(shape, parts)
        masked = [self._masked(values, "r", shape.bits)]
        if labels is not None:
            masked.append(self._masked(labels, "q", shape.label_bits))
        self._send([b"".join(of) for of in zip(*(sent for sent, _ in masked), strict=True)])
        self.opened = [opened for _, opened in masked]
        self._look_up(self.opened[0])
        self._count_wins()
        self._choose()

    def _count_wins(self) -> None:
        shape = self.shape
        masked: ByRank = []
        for rank, part in enumerate(self.parts):
            wins = [list(of) for of in part["s"]]
            for pair, (i, j) in enumerate(shape.pairs):
                for v in range(shape.vectors):
                    y = self._y(part["coefficients"], pair, v)
                    loses = self._constant(rank) - y if self._top(pair, v) else y
                    wins[i][v] += self._constant(rank) - loses
                    wins[j][v] += loses
            masked.append([x % (1 << shape.wins) for of in wins for x in of])
        self._send([pack_planes(own, shape.wins) for own in masked])
        self.won = added(masked, shape.wins)

    def _choose(self) -> None:
        """Shares of the winners' labels, and of their totals, by rank and vector."""
        shape = self.shape
        self.labels = [[0] * shape.vectors for _ in self.ranks]
        self.totals = [[0] * shape.vectors for _ in self.ranks]
        for rank, part in enumerate(self.parts):
            for i in range(shape.group):
                for v in range(shape.vectors):
                    at = self.won[i * shape.vectors + v]
                    found = [table[at][i][v] for table in part["chosen"]]
                    self.labels[rank][v] += self._label(i, v, found)
                    if not shape.last:
                        self.totals[rank][v] += self.opened[0][i][v] * found[0] - found[1]

    def _label(self, i: int, v: int, found: Sequence[int]) -> int:
        if self.shape.labelled:
            return self.opened[1][i][v] * found[0] - found[-1]
        return found[0] if self.shape.last else i * found[0]


class Marked(Compared):
    """Two rounds, from shares of totals by rank, class and row; zero seeds are by rank."""

    def __init__(
        self, shape: Comparison, parts: Sequence[Given], values: Any, zero_seeds: Sequence[bytes]
    ) -> None:
        super().__init__(shape, parts)
        p, cells = prime_from(shape.group), shape.cells
        streams = [Stream(seed) for seed in zero_seeds]
        told = [stream.bytes(32) for stream in streams]
        sent, masked = self._masked(values, "r", shape.bits)
        self._send([payload + own for payload, own in zip(sent, told, strict=True)])
        self._look_up(masked)
        units = [1 + x for x in residues(Stream(joint_seed(told)), p - 1, cells)]
        zeros = [residues(stream, p, cells) for stream in streams]
        self.shares = [
            [
                (unit * lost + zero - before) % p
                for unit, lost, zero, before in zip(
                    units, self._losses(part), zeros[rank], zeros[rank - 1], strict=True
                )
            ]
            for rank, part in enumerate(parts)
        ]
        sums = [sum(of) % p for of in zip(*self.shares, strict=True)]
        rows = [sums[v :: shape.vectors] for v in range(shape.vectors)]
        assert all(row.count(0) == 1 for row in rows)
        self.labels = [row.index(0) for row in rows]

    def _losses(self, part: Given) -> list[int]:
        """Shares of each class's losses times its unit, class by class."""
        shape, units = self.shape, part["units"]
        lost = [[0] * shape.vectors for _ in range(shape.group)]
        for pair, contestants in enumerate(shape.pairs):
            for v in range(shape.vectors):
                for side, i in enumerate(contestants):
                    y = self._y(part["coefficients"][side], pair, v)
                    # The first loses where this bit xor y is 1, the second where it is 0.
                    bit = self._top(pair, v) ^ side
                    lost[i][v] += units[i][v] - y if bit else y
        return [x for of in lost for x in of]


def marks(given: Given) -> Given:
    keys, classes = from_hex(given["keys"]), given["classes"]
    rows = len(given["totals"][0])
    totals = [[[row[c] for row in own] for c in range(classes)] for own in given["totals"]]
    shape = [rows, classes, given["bits"]]
    parts = correct(["mark", *shape], keys, 0)[1]
    contest = Marked(Comparison(*shape), parts, totals, from_hex(given["zero_seeds"]))
    by_row = [
        [own[c * rows + r] for r in range(rows) for c in range(classes)] for own in contest.shares
    ]
    bits = (prime_from(classes) - 1).bit_length()
    return {
        "exchanges": contest.exchanges,
        "label_shares": [pack_planes(own, bits).hex() for own in by_row],
        "labels": contest.labels,
    }


def count(given: Given) -> Given:
    keys, bits, queries = from_hex(given["keys"]), given["bits"], given["queries"]
    layouts = [Bits(layout, queries) for layout in given["layouts"]]
    pointer_bits = layouts[0].pointer_bits
    pointers = sum(queries * of.pointers for of in layouts)
    weights = [weight for weight, number in given["law"] for _ in range(number)]
    classes = given["layouts"][0]["classes"]
    coins = queries * classes * len(weights)
    flags = sum(queries * of.flags for of in layouts) + coins
    parts = correct(["bit_conversion", pointers, pointer_bits, flags, bits], keys, 0)[1]
    masked: list[tuple[list[int], list[int]]] = []
    for rank, part in enumerate(parts):
        read = [
            of.read(None if a is None else a[rank])
            for of, a in zip(layouts, given["shares"], strict=True)
        ]
        own_pointers = [p for agent, _ in read for p in agent]
        own_flags = [f for _, agent in read for f in agent]
        own_flags += Stream(bytes.fromhex(given["coins"][rank])).bits(coins)
        masked.append(
            (xored([own_pointers, part["pointer_masks"]]), xored([own_flags, part["flag_masks"]]))
        )
    sent = [
        (pack_planes(own[0], pointer_bits) if pointers else b"") + pack(own[1], 1) for own in masked
    ]
    opened_pointers, opened_flags = (xored(of) for of in zip(*masked, strict=True))
    totals = []
    for rank, part in enumerate(parts):
        one = int(rank == len(keys) - 1)
        units = [
            [unit[value ^ place] for place in range(len(unit))]
            for unit, value in zip(part["units"], opened_pointers, strict=True)
        ]
        values = [
            one - share if seen else share
            for share, seen in zip(part["flags"], opened_flags, strict=True)
        ]
        tossed = values[flags - coins :]
        total = [
            sum(map(mul, weights, tossed[cell * len(weights) :])) - one * sum(weights) // 2
            for cell in range(queries * classes)
        ]
        for of, agent in zip(layouts, given["shares"], strict=True):
            own_units, units = units[: queries * of.pointers], units[queries * of.pointers :]
            own_values, values = values[: queries * of.flags], values[queries * of.flags :]
            if agent is not None:
                row = of.cells(own_units, own_values)
                total = [(a + b) % (1 << bits) for a, b in zip(total, row, strict=True)]
        totals.append(total)
    exchanges = [[payload.hex() for payload in sent]]
    return {"exchanges": exchanges, "total_shares": totals, "totals": added(totals, bits)}


class Bits:
    """How an agent's bits are laid out."""

    def __init__(self, layout: Given, queries: int) -> None:
        self.queries, self.classes, self.unit = queries, layout["classes"], layout["unit"]
        self.attributes = layout["attributes"]
        self.pointers = 0 if self.attributes else layout["votes"]
        self.pointer_bits = 0 if self.attributes else self.classes.bit_length()
        self.flags = self.classes if self.attributes else 0
        self.size = self.pointers * self.pointer_bits + self.flags

    def read(self, share: Given | None) -> tuple[list[int], list[int]]:
        """Pointers and flags of all queries; zeros of who is absent."""
        bits = self._bits(share)
        pointers, flags = [], []
        for start in range(0, len(bits), self.size):
            row = bits[start : start + self.size]
            for _ in range(self.pointers):
                own, row = row[: self.pointer_bits], row[self.pointer_bits :]
                pointers.append(sum(bit << place for place, bit in enumerate(own)))
            flags += row
        return pointers, flags

    def _bits(self, share: Given | None) -> list[int]:
        count = self.queries * self.size
        if share is None:
            return [0] * count
        if "seed" in share:
            return Stream(bytes.fromhex(share["seed"])).bits(count)
        return unpack(bytes.fromhex(share["packed"]), 1, count)

    def cells(self, units: ByRank, flags: list[int]) -> list[int]:
        """Shares of the agent's numbers, (queries, classes)."""
        cells = []
        for query in range(self.queries):
            own = flags[query * self.flags : (query + 1) * self.flags]
            cast = units[query * self.pointers : (query + 1) * self.pointers]
            for c in range(self.classes):
                votes = own[c] if self.attributes else sum(unit[c] for unit in cast)
                cells.append(self.unit * votes)
        return cells
