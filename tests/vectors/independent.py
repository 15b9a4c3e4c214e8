"""A second implementation of what is on file, from docs/protocol.md alone, in plain integers.

It imports nothing of the project and shares no code with it: where both agree, the section
"Encodings and test vectors" says enough. It is written to be read beside that section, not to be
quick.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import combinations, product
from math import prod
from operator import xor
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

Given = dict[str, Any]
WORD = 64


class Refused(Exception):
    """What a reader must not accept."""


# Streams


class Stream:
    """Stream `number` of a seed."""

    def __init__(self, seed: bytes, number: int = 0) -> None:
        if len(seed) != 32:
            raise Refused("a seed has 32 bytes")
        block = u64(number) + u64(0)
        self._cipher = Cipher(algorithms.AES256(seed), modes.CTR(block)).encryptor()

    def bytes(self, count: int) -> bytes:
        return self._cipher.update(bytes(count))

    def numbers(self, count: int, size: int) -> list[int]:
        """Little-endian numbers of `size` bytes."""
        return [int.from_bytes(self.bytes(size), "little") for _ in range(count)]

    def words(self, count: int) -> list[int]:
        return self.numbers(count, 8)

    def bits(self, count: int) -> list[int]:
        return unpack(self.bytes(-(-count // 8)), 1, count)

    def values(self, count: int, bits: int) -> list[int]:
        """Numbers of W(bits), cut to what counts."""
        return [number % (1 << bits) for number in self.numbers(count, width_bytes(bits))]


def u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


def width_bytes(bits: int) -> int:
    """The size of W(bits)."""
    return next(size for size in (1, 2, 4, 8) if bits <= 8 * size)


def joint_seed(seeds: Sequence[bytes]) -> bytes:
    return hashlib.sha256(b"joint seed" + b"".join(seeds)).digest()


# Packing


def pack(values: Sequence[int], bits: int) -> bytes:
    whole = sum((value % (1 << bits)) << (bits * place) for place, value in enumerate(values))
    return whole.to_bytes(-(-len(values) * bits // 8), "little")


def unpack(data: bytes, bits: int, count: int) -> list[int]:
    if not 1 <= bits <= WORD or len(data) != -(-count * bits // 8):
        raise Refused("another length")
    whole = int.from_bytes(data, "little")
    return [(whole >> (bits * place)) % (1 << bits) for place in range(count)]


def pack_planes(values: Sequence[int], bits: int) -> bytes:
    whole = 8 * (bits // 8)
    octets = [pack([value >> shift for value in values], 8) for shift in range(0, whole, 8)]
    singles = [pack([value >> bit for value in values], 1) for bit in range(whole, bits)]
    return b"".join(octets + singles)


def unpack_planes(data: bytes, bits: int, count: int) -> list[int]:
    whole = 8 * (bits // 8)
    planes = [(shift, 8) for shift in range(0, whole, 8)] + [(bit, 1) for bit in range(whole, bits)]
    if not planes or bits > WORD:
        raise Refused("another ring")
    values = [0] * count
    for shift, width in planes:
        size = -(-count * width // 8)
        plane, data = unpack(data[:size], width, count), data[size:]
        values = [value + (part << shift) for value, part in zip(values, plane, strict=True)]
    if data:
        raise Refused("another length")
    return values


# Shares


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
    seeds = from_hex(given["seeds"])
    shares = []
    for rank in range(len(seeds)):
        after, before = Stream(seeds[rank]), Stream(seeds[rank - 1])
        shares.append(
            [
                [
                    (a - b) % (1 << WORD)
                    for a, b in zip(after.words(n), before.words(n), strict=True)
                ]
                for n in given["counts"]
            ]
        )
    return {"shares": shares}


def from_hex(texts: Sequence[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


# Verified ballots


def encode(given: Given) -> Given:
    layout = given["layout"]
    classes, unit, bound = layout["classes"], layout["unit"], layout["bound"]
    attributes, votes = layout["attributes"], layout["votes"]
    weights: list[int] = []
    while sum(weights) < 2 * bound:
        weights.append(min(1 + sum(weights), 2 * bound - sum(weights)))
    pointer_bits = 0 if attributes else classes.bit_length()
    rows = []
    for ballot, noise, order in zip(given["ballot"], given["noise"], given["orders"], strict=True):
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
        for drawn in noise:
            row += noise_flags(max(-bound, min(bound, drawn)) + bound, weights)
        rows.append(row)
    pointers = 0 if attributes else votes
    return {
        "pointers": pointers,
        "pointer_bits": pointer_bits,
        "noise_weights": weights,
        "flags": len(rows[0]) - pointers * pointer_bits,
        "bits": ["".join(map(str, row)) for row in rows],
        "packed": pack([bit for row in rows for bit in row], 1).hex(),
    }


def noise_flags(left: int, weights: Sequence[int]) -> list[int]:
    flags = [0] * len(weights)
    for place in reversed(range(len(weights))):
        if left > sum(weights[:place]):
            flags[place] = 1
            left -= weights[place]
    assert left == 0
    return flags


# Dealing


def hashed(purpose: str, *parts: bytes) -> bytes:
    every = (b"mpc-vote " + purpose.encode(), *parts)
    return hashlib.sha256(b"".join(u64(len(part)) + part for part in every)).digest()


def plan_text(runs: Sequence[Any]) -> str:
    return json.dumps(runs, separators=(",", ":"))


def seed_hashes(session: str, rank: int, seeds: Sequence[bytes]) -> bytes:
    """Of all copies of a rank, side by side."""
    return b"".join(
        hashed("seed", session.encode(), u64(rank), u64(copy), seed)
        for copy, seed in enumerate(seeds)
    )


def transcript_of(given: Given, hashes: Sequence[bytes]) -> bytes:
    names = [name.encode() for name in given["parties"]]
    return hashed(
        "transcript",
        given["session"].encode(),
        u64(len(names)),
        *names,
        hashlib.sha256(plan_text(given["runs"]).encode()).digest(),
        u64(given["copies"]),
        *hashes,
    )


def stream_key(seed: bytes, transcript: bytes, rank: int, copy: int) -> bytes:
    bound = hashed("stream", transcript, u64(rank), u64(copy))
    return hmac.new(seed, bound, hashlib.sha256).digest()


def commitment(correction: bytes, last_key: bytes, index: int) -> bytes:
    key = hmac.new(last_key, b"mpc-vote commitment", hashlib.sha256).digest()
    return hashlib.blake2b(u64(index) + correction, key=key, digest_size=32).digest()


def copy_of(coins: Sequence[bytes], copies: int) -> int:
    return int.from_bytes(hashed("copy", *coins), "big") % copies


def lot_of(said: bytes, first: Sequence[bytes], coins: Sequence[bytes]) -> bytes:
    return hashed("lot", said, *first, *coins)


def check_plan(runs: Sequence[Any]) -> None:
    """What a dealer takes."""
    fits = all(len(run) > 1 and 1 <= run[0] <= 1 << 16 for run in runs)
    fits = fits and sum(len(run) - 1 for run in runs) <= 1 << 16
    fits = fits and sum((len(run) - 1) * run[0] for run in runs) <= 1 << 17
    if not fits or not all(item_fits(*item) for run in runs for item in run[1:]):
        raise Refused("no such plan")


def item_fits(kind: str, *fields: int) -> bool:
    if kind == "Triples":
        return fields[0] in (1, 2, 3) and 1 <= fields[1] <= 1 << 24
    if kind == "Level":
        vectors, group, bits, label_bits, *_ = fields
        fits = 2 <= group <= 256 and 13 <= bits <= 31 and 1 <= label_bits <= 64
        return fits and 1 <= vectors * group * (group - 1) // 2 <= 1 << 16
    if kind == "Rotation":
        rows, classes = fields
        return 2 <= classes <= 1000 and 1 <= rows << (classes - 1).bit_length() <= 1 << 24
    pointers, pointer_bits, flags, bits = fields
    fits = pointer_bits <= 10 and 13 <= bits <= 64
    return fits and 1 <= (pointers << pointer_bits) + flags <= 1 << 26


def plan(given: Given) -> Given:
    check_plan(given["runs"])
    text = plan_text(given["runs"])
    wire = b"".join(field(3, run_message(run)) for run in given["runs"])
    return {
        "text": text,
        "digest": hashlib.sha256(text.encode()).hexdigest(),
        "wire": wire.hex(),
    }


def own_seeds(given: Given) -> Given:
    hashes = from_hex(given["seed_hashes"])
    own = seed_hashes(given["session"], given["rank"], from_hex(given["seeds"]))
    if hashes[given["rank"]] != own:
        raise Refused("not this party's seeds")
    return {"transcript": transcript_of(given, hashes).hex()}


def draw(given: Given) -> Given:
    by_rank, coins = [from_hex(own) for own in given["seeds"]], from_hex(given["coins"])
    hashes = [seed_hashes(given["session"], rank, own) for rank, own in enumerate(by_rank)]
    transcript = transcript_of(given, hashes)
    keys = [
        [stream_key(own[copy], transcript, rank, copy) for rank, own in enumerate(by_rank)]
        for copy in range(given["copies"])
    ]
    items = [item for times, *run in given["runs"] for _ in range(times) for item in run]
    commitments = [
        b"".join(commitment(correct(item, of, index)[0], of[-1], index) for of in keys)
        for index, item in enumerate(items)
    ]
    said = hashed("dealt", transcript, *commitments)
    tosses = [hashed("coin", transcript, u64(rank), coin) for rank, coin in enumerate(coins)]
    lot = lot_of(said, [said + toss for toss in tosses], coins)
    copy = copy_of(coins, given["copies"])
    return {
        "plan_digest": hashlib.sha256(plan_text(given["runs"]).encode()).hexdigest(),
        "seed_hashes": to_hex(hashes),
        "transcript": transcript.hex(),
        "keys": [to_hex(of) for of in keys],
        "commitments": to_hex(commitments),
        "dealt": said.hex(),
        "coin_hashes": to_hex(tosses),
        "lot": lot.hex(),
        "copy": copy,
        "context": hashed("drawn", lot, u64(copy)).hex(),
    }


def to_hex(parts: Sequence[bytes]) -> list[str]:
    return [part.hex() for part in parts]


# Items. Arrays are flat here, and nested where they are shown.


def nested(flat: Sequence[int], *shape: int) -> list[Any]:
    if len(shape) == 1:
        return list(flat)
    size = prod(shape[1:])
    return [nested(flat[size * place :][:size], *shape[1:]) for place in range(shape[0])]


def added(shares: Sequence[Sequence[int]], bits: int) -> list[int]:
    return [sum(column) % (1 << bits) for column in zip(*shares, strict=True)]


def xored(shares: Sequence[Sequence[int]]) -> list[int]:
    return [reduce(xor, column) for column in zip(*shares, strict=True)]


def missing(secret: Sequence[int], others: Sequence[Sequence[int]], bits: int) -> list[int]:
    """What the last party must have for the sum to be the secret."""
    return [
        (value - sum(drawn)) % (1 << bits) for value, *drawn in zip(secret, *others, strict=True)
    ]


Correction = tuple[bytes, list[Given]]


def triples(fields: Sequence[int], keys: Sequence[bytes], index: int) -> Correction:
    kind, count = fields
    streams = [Stream(key, index) for key in keys]
    if kind == 3:
        free = [(stream.bits(count),) for stream in streams]
    else:
        free = [(stream.words(count), stream.words(count)) for stream in streams]
    drawn = [stream.words(count) for stream in streams[:-1]]
    shares = list(zip(*free, strict=True))
    if kind == 1:
        a, b = (added(of, WORD) for of in shares)
        last = missing([x * y for x, y in zip(a, b, strict=True)], drawn, WORD)
    elif kind == 2:
        a, b = (xored(of) for of in shares)
        last = xored([[x & y for x, y in zip(a, b, strict=True)], *drawn])
    else:
        last = missing(xored(shares[0]), drawn, WORD)
    names = ("a", "c") if kind == 3 else ("a", "b", "c")
    parts = [
        dict(zip(names, (*own, c), strict=True))
        for own, c in zip(free, [*drawn, last], strict=True)
    ]
    return pack(last, WORD), parts


def rotation(fields: Sequence[int], keys: Sequence[bytes], index: int) -> Correction:
    rows, classes = fields
    bits = max(1, (classes - 1).bit_length())
    places = 1 << bits
    streams = [Stream(key, index) for key in keys]
    positions = [[word % places for word in stream.words(rows)] for stream in streams]
    drawn = [stream.words(rows * places) for stream in streams[:-1]]
    unit = [int(place == t) for t in added(positions, bits) for place in range(places)]
    last = missing(unit, drawn, WORD)
    parts = [
        {"position": own, "unit": nested(units, rows, places)}
        for own, units in zip(positions, [*drawn, last], strict=True)
    ]
    return pack(last, WORD), parts


def unmasking(fields: Sequence[int], keys: Sequence[bytes], index: int) -> Correction:
    pointers, pointer_bits, flags, bits = fields
    places = 1 << pointer_bits
    streams = [Stream(key, index) for key in keys]
    pointed, flagged, drawn = [], [], []
    for stream in streams:
        pointed.append([mask % places for mask in stream.numbers(pointers, 2)])
        flagged.append(stream.bits(flags))
    for stream in streams[:-1]:
        drawn.append(stream.values(pointers * places + flags, bits))
    units = [int(place == t) for t in xored(pointed) for place in range(places)]
    last = missing(units + xored(flagged), drawn, bits)
    parts = [
        {
            "pointer_masks": masks,
            "units": nested(numbers, pointers, places),
            "flag_masks": mask_bits,
            "flags": numbers[pointers * places :],
        }
        for masks, mask_bits, numbers in zip(pointed, flagged, [*drawn, last], strict=True)
    ]
    return pack_planes(last, bits), parts


class Level:
    """The shapes of a level, its secrets, and what a party reads."""

    def __init__(self, fields: Sequence[Any]) -> None:
        self.vectors, self.group, self.bits, self.label_bits, self.labelled, self.last = fields
        self.pairs = list(combinations(range(self.group), 2))
        self.cells = self.group * self.vectors
        self.wins = (self.group - 1).bit_length()
        low = self.bits - 1
        self.count = count = -(-low // 6)
        ends = [low * (count - k) // count for k in range(count + 1)]
        self.digits = [(ends[k + 1], ends[k] - ends[k + 1]) for k in range(count)]
        self.table_bytes = (1 << max(width for _, width in self.digits)) // 8
        self.masks = (1 << (count - 1)) + (1 << count) - 1
        self.widths = self._widths()

    def _widths(self) -> list[int]:
        if self.last:
            return [self.label_bits] * (2 if self.labelled else 1)
        carried = [max(self.bits, self.label_bits), self.bits]
        return carried + ([self.label_bits] if self.labelled else [])

    @property
    def compared(self) -> int:
        return len(self.pairs) * self.vectors

    @property
    def looked_up(self) -> int:
        return 2 * self.count - 1

    @property
    def entries(self) -> int:
        return (1 << self.wins) * self.cells

    def free(self, stream: Stream) -> Given:
        r = stream.values(self.cells, self.bits)
        s = stream.values(self.cells, self.wins)
        q = stream.values(self.cells, self.label_bits) if self.labelled else None
        return {"r": r, "s": s, "q": q}

    def drawn(self, stream: Stream) -> Given:
        return {
            "tables": stream.numbers(self.looked_up * self.compared, self.table_bytes),
            "masks": stream.values(self.masks * self.compared, self.wins),
            "chosen": [stream.values(self.entries, width) for width in self.widths],
        }

    def secret(self, free: Sequence[Given], flips: Sequence[int]) -> Given:
        """What all parties' shares make, from what is free and the secret bits."""
        r = added([own["r"] for own in free], self.bits)
        s = added([own["s"] for own in free], self.wins)
        q = added([own["q"] for own in free], self.label_bits) if self.labelled else []
        tables: list[list[int]] = [[] for _ in range(self.looked_up)]
        masks: list[list[int]] = [[] for _ in range(self.masks)]
        # Pair by pair and vector by vector, which is the order of each table and mask.
        for place, ((i, j), v) in enumerate(product(self.pairs, range(self.vectors))):
            rho = (r[i * self.vectors + v] - r[j * self.vectors + v]) % (1 << self.bits)
            bits = flips[place :: self.compared]
            for table, number in zip(tables, self._tables(rho, bits), strict=True):
                table.append(number)
            for mask, number in zip(masks, self._masks(rho, bits), strict=True):
                mask.append(number)
        return {
            "tables": sum(tables, []),
            "masks": sum(masks, []),
            "chosen": [self._chosen(s, values) for values in self._values(r, q)],
        }

    def _tables(self, rho: int, flips: Sequence[int]) -> Iterator[int]:
        digits = [(rho >> shift) % (1 << width) for shift, width in self.digits]
        every = range(8 * self.table_bytes)
        for digit, alpha in zip(digits, flips, strict=False):
            yield sum((int(x < digit) ^ alpha) << x for x in every)
        for digit, beta in zip(digits, flips[self.count :], strict=False):
            yield sum((int(x == digit) ^ beta) << x for x in every)

    def _masks(self, rho: int, flips: Sequence[int]) -> Iterator[int]:
        nu = rho >> (self.bits - 1)
        alphas, betas = flips[: self.count], flips[self.count :]

        def signed(chosen: int) -> int:
            return (1 - 2 * nu) * prod(b for j, b in enumerate(betas) if chosen >> j & 1)

        yield nu
        for chosen in range(1, 1 << (self.count - 1)):
            yield signed(chosen)
        for k, alpha in enumerate(alphas):
            for chosen in range(1 << k):
                yield signed(chosen) * alpha

    def _values(self, r: list[int], q: list[int]) -> list[list[int]]:
        """What is looked up at the end, for each contestant and vector."""
        if self.last and not self.labelled:
            return [[i for i in range(self.group) for _ in range(self.vectors)]]
        carried = [[1] * self.cells] if self.last else [[1] * self.cells, r]
        return carried + ([q] if self.labelled else [])

    def _chosen(self, s: Sequence[int], values: Sequence[int]) -> list[int]:
        size = 1 << self.wins
        won = [(mask + self.group - 1) % size for mask in s]
        return [
            value if at == place else 0
            for place in range(size)
            for at, value in zip(won, values, strict=True)
        ]

    def correction(self, secret: Given, others: Sequence[Given]) -> Given:
        """The last party's values."""
        return {
            "tables": xored([secret["tables"], *(own["tables"] for own in others)]),
            "masks": missing(secret["masks"], [own["masks"] for own in others], self.wins),
            "chosen": [
                missing(table, [own["chosen"][number] for own in others], width)
                for number, (table, width) in enumerate(
                    zip(secret["chosen"], self.widths, strict=True)
                )
            ],
        }

    def wire(self, correction: Given) -> bytes:
        chosen = zip(correction["chosen"], self.widths, strict=True)
        return b"".join(
            [
                pack(correction["tables"], 8 * self.table_bytes),
                pack_planes(correction["masks"], self.wins),
                *(pack_planes(table, width) for table, width in chosen),
            ]
        )

    def part(self, free: Given, corrected: Given, last: bool) -> Given:
        """As a party keeps it."""
        pairs = len(self.pairs)
        masks = nested(corrected["masks"], self.masks, self.compared)
        ring = 1 << self.wins
        products = masks[: 1 << (self.count - 1)]
        flips = masks[1 << (self.count - 1) :]
        sign = [(int(last) - 2 * nu) % ring for nu in masks[0]]
        steps = []
        for k in range(self.count):
            for chosen in range(1 << k):
                of = sign if chosen == 0 else products[chosen]
                flip = flips[len(steps)]
                steps.append([(b - 2 * f) % ring for b, f in zip(of, flip, strict=True)])
        size = (self.group, self.vectors)

        def by_pair(rows: Sequence[Sequence[int]]) -> list[Any]:
            return [nested(row, pairs, self.vectors) for row in rows]

        return {
            "r": nested(free["r"], *size),
            "s": nested(free["s"], *size),
            "q": nested(free["q"], *size) if self.labelled else None,
            "tables": nested(corrected["tables"], self.looked_up, pairs, self.vectors),
            "nu": by_pair(masks[:1])[0],
            "flips": by_pair(flips),
            "steps": by_pair(steps),
            "chosen": [nested(table, ring, *size) for table in corrected["chosen"]],
        }


def level(fields: Sequence[Any], keys: Sequence[bytes], index: int) -> Correction:
    shape = Level(fields)
    streams = [Stream(key, index) for key in keys]
    free = [shape.free(stream) for stream in streams]
    flips = Stream(joint_seed(keys), index).bytes(shape.looked_up * shape.compared)
    drawn = [shape.drawn(stream) for stream in streams[:-1]]
    last = shape.correction(shape.secret(free, [byte & 1 for byte in flips]), drawn)
    ranks = zip(free, [*drawn, last], strict=True)
    parts = [shape.part(own, rest, rank == len(keys) - 1) for rank, (own, rest) in enumerate(ranks)]
    return shape.wire(last), parts


ITEMS: dict[str, Callable[[Sequence[Any], Sequence[bytes], int], Correction]] = {
    "Triples": triples,
    "Level": level,
    "Rotation": rotation,
    "Unmasking": unmasking,
}


def correct(item: Sequence[Any], keys: Sequence[bytes], index: int) -> Correction:
    """The correction of an item, and all parties' parts."""
    kind, *fields = item
    return ITEMS[kind](fields, keys, index)


def expand_last(given: Given) -> Given:
    """Corrections have one length, whatever the keys are."""
    correction, parts = correct(given["item"], [bytes(32), bytes.fromhex(given["key"])], 0)
    if len(given["correction"]) != 2 * len(correction):
        raise Refused("another length")
    return parts[-1]


# Contexts and messages

DTYPES = {
    "float32": (1, "f"),
    "float64": (2, "d"),
    "uint8": (3, "B"),
    "int32": (4, "i"),
    "int64": (5, "q"),
}


def spec_digest(wire: str) -> bytes:
    return hashlib.sha256(bytes.fromhex(wire)).digest()


def deal_context(given: Given) -> Given:
    joined = spec_digest(given["spec"]) + bytes.fromhex(given["transcript"])
    return {"context": hashlib.sha256(joined).hexdigest()}


def count_context(given: Given) -> Given:
    joined = spec_digest(given["spec"]) + bytes.fromhex(given["drawn"])
    for agent, submission in sorted(given["contributors"]):
        joined += agent.encode() + b"\0" + bytes.fromhex(submission)
    return {"context": hashlib.sha256(joined).hexdigest()}


def queries(given: Given) -> Given:
    if given["dtype"] not in DTYPES:
        raise Refused("no such dtype")
    number, code = DTYPES[given["dtype"]]
    flat, shape = given["rows"], []
    while isinstance(flat[0], list):
        shape.append(len(flat[0]))
        flat = sum(flat, [])
    text = f"{number}:{tuple(shape)}"
    data = struct.pack(f"<{len(flat)}{code}", *flat)
    return {"digest": hashlib.sha256(text.encode() + data).hexdigest()}


def labels(given: Given) -> Given:
    return {"wire": b"".join(label.to_bytes(2, "little") for label in given["labels"]).hex()}


def tensor(given: Given) -> Given:
    """Rows of one number each."""
    codes = {f"DTYPE_{name.upper()}": code for name, (_, code) in DTYPES.items()}
    if given["dtype"] not in codes:
        raise Refused("no such dtype")
    layout = f"<{prod(given['shape'])}{codes[given['dtype']]}"
    data = bytes.fromhex(given["data"])
    if not given["shape"] or len(data) != struct.calcsize(layout):
        raise Refused("another length")
    return {"rows": nested(struct.unpack(layout, data), *given["shape"])}


def varint(number: int) -> bytes:
    """Protobuf's integers."""
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def field(number: int, value: int | bytes | float) -> bytes:
    """A protobuf field; a number that is zero is left out, as is `false`."""
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value) if value else b""
    return varint(number << 3 | 2) + varint(len(value)) + value


def run_message(run: Sequence[Any]) -> bytes:
    """A `DealRun`."""
    times, *items = run
    places = {"Triples": 1, "Level": 2, "Rotation": 3, "Unmasking": 4}
    message = b""
    for kind, *fields in items:
        shape = b"".join(field(place, int(value)) for place, value in enumerate(fields, start=1))
        message += field(1, field(places[kind], shape))
    return message + field(2, times)


# The fields of a `RoundSpec` by number, and the numbers that its names stand for.
SPEC_FIELDS = ["round_id", "queries_digest", "queries", "query_dtype", "query_shape", "classes", "ballot", "tau", "fraction_bits", "sigma", "roster", "quorum", "collusion", "parties", "dealer", "engine", "ring_bits", "deadline_unix_ms", "groups", "verified"]
SPEC_NAMES = {
    "DTYPE_FLOAT32": 1,
    "BALLOT_KIND_ONE_HOT": 1,
    "BALLOT_KIND_KNN_FREQUENCY": 2,
    "BALLOT_KIND_KNN_COUNT": 3,
    "BALLOT_KIND_MULTI_LABEL": 4,
    "ENGINE_STOCK_PAIRWISE": 1,
    "ENGINE_STOCK_LOG_REDUCTION": 2,
    "ENGINE_STOCK_DOUBLE_LOG_REDUCTION": 3,
    "ENGINE_STOCK_ACCELERATED_CASCADE": 4,
    "ENGINE_TABLE": 5,
}


def spec_field(number: int, name: str, value: Any) -> bytes:
    if name == "queries_digest":
        return field(number, bytes.fromhex(value))
    if name in ("query_shape", "groups"):
        return field(number, b"".join(map(varint, value)))
    if name == "parties":
        return b"".join(field(number, party.encode()) for party in value)
    if name == "roster":
        entries = [field(1, e["agent"].encode()) + field(2, e.get("k", 0)) for e in value]
        return b"".join(field(number, entry) for entry in entries)
    if isinstance(value, str):
        return field(number, SPEC_NAMES.get(value) or value.encode())
    return field(number, value)


def seal(given: Given) -> Given:
    """Of a spec that is valid, the bytes; and what follows without a bound of the noise."""
    wire = b"".join(
        spec_field(number, name, given[name])
        for number, name in enumerate(SPEC_FIELDS, start=1)
        if name in given
    )
    attributes = given["ballot"] == "BALLOT_KIND_MULTI_LABEL"
    ranks = range(len(given["roster"]))
    return {
        "wire": wire.hex(),
        "digest": hashlib.sha256(wire).hexdigest(),
        "rows": given["queries"] * (given["classes"] if attributes else 1),
        "row_classes": 2 if attributes else given["classes"],
        "explicit_rank": {
            given["roster"][place]["agent"]: place % len(given["parties"]) for place in ranks
        },
    }


RULES: dict[str, dict[str, Callable[[Given], Given]]] = {
    "prg": {
        "reads": lambda given: {"found": list(read_stream(given))},
        "joint_seed": lambda given: {"seed": joint_seed(from_hex(given["seeds"])).hex()},
    },
    "packing": {
        "pack": lambda given: {
            "packed": pack(given["values"], given["bits"]).hex(),
            "planes": pack_planes(given["values"], given["bits"]).hex(),
        },
        "unpack": lambda given: {"values": unpack(*packed_bytes(given))},
        "unpack_planes": lambda given: {"values": unpack_planes(*packed_bytes(given))},
    },
    "sharing": {"split": split, "split_bits": split_bits},
    "zero_sharing": {"zero_share": zero_share},
    "encoding": {"encode": encode},
    "dealing": {
        "plan": plan,
        "draw": draw,
        "own_seeds": own_seeds,
        "commitment": lambda given: {
            "commitment": commitment(
                bytes.fromhex(given["correction"]),
                bytes.fromhex(given["last_key"]),
                given["index"],
            ).hex()
        },
        "copy": lambda given: {"copy": copy_of(from_hex(given["coins"]), given["copies"])},
    },
    "corrections": {
        "correct": lambda given: corrected(*correct(*item_of(given))),
        "expand_last": expand_last,
    },
    "contexts": {
        "deal_context": deal_context,
        "count_context": count_context,
        "queries": queries,
        "labels": labels,
        "tensor": tensor,
    },
    "spec": {"seal": seal},
}


def read_stream(given: Given) -> Iterator[Any]:
    stream = Stream(bytes.fromhex(given["seed"]), given["stream"])
    for kind, count in given["reads"]:
        if kind == "bytes":
            yield stream.bytes(count).hex()
        else:
            yield stream.words(count) if kind == "words" else stream.bits(count)


def packed_bytes(given: Given) -> tuple[bytes, int, int]:
    return bytes.fromhex(given["data"]), given["bits"], given["count"]


def item_of(given: Given) -> tuple[Sequence[Any], list[bytes], int]:
    return given["item"], from_hex(given["keys"]), given["index"]


def corrected(correction: bytes, parts: list[Given]) -> Given:
    return {"correction": correction.hex(), "parts": parts}
