"""What binds a session, after docs/protocol.md, Encodings and test vectors: Dealing."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any

from tests.security.vectors.independent.items import correct
from tests.security.vectors.independent.messages import deal_request
from tests.security.vectors.independent.streams import Given, Refused, from_hex, to_hex, u64


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


def check_plan(runs: Sequence[Any]) -> None:
    """What a dealer takes."""
    fits = all(len(run) > 1 and 1 <= run[0] <= 1 << 16 for run in runs)
    fits = fits and sum(len(run) - 1 for run in runs) <= 1 << 16
    fits = fits and sum((len(run) - 1) * run[0] for run in runs) <= 1 << 17
    if not fits or not all(item_fits(*item) for run in runs for item in run[1:]):
        raise Refused("no such plan")


def item_fits(kind: str, *fields: int) -> bool:
    if kind == "triples":
        return fields[0] in (1, 2, 3) and 1 <= fields[1] <= 1 << 24
    if kind == "level":
        vectors, group, bits, label_bits, *_ = fields
        fits = 2 <= group <= 256 and 3 <= bits <= 31 and 1 <= label_bits <= 64
        return fits and 1 <= vectors * group * (group - 1) // 2 <= 1 << 16
    if kind == "mark":
        vectors, group, bits = fields
        return (
            2 <= group <= 251
            and 3 <= bits <= 31
            and 1 <= vectors * group * (group - 1) // 2 <= 1 << 16
        )
    if kind == "rotation":
        rows, classes = fields
        return 2 <= classes <= 1000 and 1 <= rows << (classes - 1).bit_length() <= 1 << 24
    pointers, pointer_bits, flags, bits = fields
    fits = pointer_bits <= 10 and 3 <= bits <= 64
    return fits and 1 <= (pointers << pointer_bits) + flags <= 1 << 26


def plan(given: Given) -> Given:
    check_plan(given["runs"])
    text = plan_text(given["runs"])
    wire = deal_request(given["runs"])
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
    lot = hashed("lot", said, *(said + toss for toss in tosses), *coins)
    drawn = copy_of(coins, given["copies"])
    return {
        "plan_digest": hashlib.sha256(plan_text(given["runs"]).encode()).hexdigest(),
        "seed_hashes": to_hex(hashes),
        "transcript": transcript.hex(),
        "keys": [to_hex(of) for of in keys],
        "commitments": to_hex(commitments),
        "dealt": said.hex(),
        "coin_hashes": to_hex(tosses),
        "lot": lot.hex(),
        "copy": drawn,
        "context": hashed("drawn", lot, u64(drawn)).hex(),
    }


def committed(given: Given) -> Given:
    correction, last_key = from_hex([given["correction"], given["last_key"]])
    return {"commitment": commitment(correction, last_key, given["index"]).hex()}


def copy(given: Given) -> Given:
    return {"copy": copy_of(from_hex(given["coins"]), given["copies"])}
