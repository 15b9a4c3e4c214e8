"""Known answers of correlated randomness: what binds a session, and each item of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mpc_vote.argmax.crypten.triples import TripleKind, TriplePart, Triples
from mpc_vote.argmax.one_hot import Rotation, RotationPart
from mpc_vote.argmax.table.level import LevelPart, LevelTables
from mpc_vote.argmax.table.marks import MarkPart, MarkTables
from mpc_vote.mpc import cut_and_choose
from mpc_vote.mpc.cut_and_choose import Grant, Session
from mpc_vote.mpc.preprocessing import Item, PreprocessingPlan, Run
from mpc_vote.proto.mpcvote.v1 import dealer_pb2
from mpc_vote.verified.bit_conversion import BitConversion, BitConversionPart
from mpc_vote.voting import codec
from tests.security.vectors.shares import from_hex, seed, seeds
from tests.security.vectors.topic import Case, Topic

Given = dict[str, Any]

_KINDS: dict[str, Callable[..., Item[Any]]] = {
    "level": LevelTables,
    "mark": MarkTables,
    "rotation": Rotation,
    "bit_conversion": BitConversion,
}


def _item(described: list[Any]) -> Item[Any]:
    kind, *fields = described
    if kind == "triples":
        return Triples(TripleKind(fields[0]), fields[1])
    return _KINDS[kind](*fields)


def _plan_of(runs: list[Any]) -> PreprocessingPlan:
    return PreprocessingPlan(tuple(Run(tuple(map(_item, items)), times) for times, *items in runs))


def _plan(given: Given) -> Given:
    """As the dealer reads it."""
    plan = codec.from_wire(codec.to_wire(_plan_of(given["runs"])))
    wire = dealer_pb2.DealRequest(plan=codec.to_wire(plan))
    return {
        "text": plan.text,
        "digest": plan.digest.hex(),
        "wire": wire.SerializeToString(deterministic=True).hex(),
    }


def _session(given: Given) -> Session:
    plan = _plan_of(given["runs"])
    return Session(given["session"], tuple(given["parties"]), plan, given["copies"])


def _own_seeds(given: Given) -> Given:
    """What a party that hears these hashes takes for the transcript."""
    hashes = tuple(from_hex(given["seed_hashes"]))
    grant = Grant(_session(given), given["rank"], tuple(from_hex(given["seeds"])), hashes, ())
    return {"transcript": grant.transcript().hex()}


def _draw(given: Given) -> Given:
    """A session from its seeds and coins, by rank, to the context of its count."""
    session, coins = _session(given), from_hex(given["coins"])
    by_rank = [from_hex(own) for own in given["seeds"]]
    hashes = [session.seed_hashes(rank, own) for rank, own in enumerate(by_rank)]
    transcript = session.transcript(hashes)
    by_copy = enumerate(zip(*by_rank, strict=True))
    keys = [cut_and_choose.stream_keys(transcript, own, copy) for copy, own in by_copy]
    digests = [cut_and_choose.commit(item, keys, index) for index, item in enumerate(session.plan)]
    said = cut_and_choose.dealt_digest(transcript, digests)
    tosses = [cut_and_choose.coin_hash(transcript, rank, coin) for rank, coin in enumerate(coins)]
    lot = cut_and_choose.lot_digest(said, [said + toss for toss in tosses], coins)
    copy = cut_and_choose.drawn_copy(coins, session.copies)
    return {
        "plan_digest": session.plan.digest.hex(),
        "seed_hashes": [of_one.hex() for of_one in hashes],
        "transcript": transcript.hex(),
        "keys": [[key.hex() for key in of_copy] for of_copy in keys],
        "commitments": [of_item.hex() for of_item in digests],
        "dealt": said.hex(),
        "coin_hashes": [toss.hex() for toss in tosses],
        "lot": lot.hex(),
        "copy": copy,
        "context": cut_and_choose.drawn_context(lot, copy).hex(),
    }


def _commitment(given: Given) -> Given:
    correction, key = bytes.fromhex(given["correction"]), bytes.fromhex(given["last_key"])
    return {"commitment": cut_and_choose.commitment(correction, key, given["index"]).hex()}


def _copy(given: Given) -> Given:
    return {"copy": cut_and_choose.drawn_copy(from_hex(given["coins"]), given["copies"])}


_RUNS = [
    [2, ["bit_conversion", 2, 2, 3, 13]],
    [1, ["level", 1, 2, 13, 1, False, True], ["triples", 2, 1], ["rotation", 1, 3]],
    [3, ["mark", 2, 3, 12]],
]
_SMALL: Given = {
    "session": "round-1",
    "parties": ["alpha", "beta"],
    "runs": [[1, ["triples", 1, 2]]],
    "copies": 2,
}
_LARGE: Given = {
    "session": "round-2",
    "parties": ["alpha", "beta", "gamma"],
    "runs": _RUNS,
    "copies": 3,
}


def _drawn_from(session: Given, start: int) -> Given:
    parties, copies = len(session["parties"]), session["copies"]
    own = [seeds(copies, start=start + 64 * rank) for rank in range(parties)]
    return {**session, "seeds": own, "coins": seeds(parties, start=start + 5)}


_DRAWN = _drawn_from(_SMALL, 0)
_HASHED = _draw(_DRAWN)["seed_hashes"]
_REFUSED_PLANS = {
    "a run without items": [[1]],
    "a run that is made no times": [[0, ["triples", 1, 1]]],
    "no triples": [[1, ["triples", 1, 0]]],
    "a group of one": [[1, ["level", 1, 1, 13, 1, False, True]]],
    "a ring that is too small": [[1, ["level", 1, 2, 2, 1, False, True]]],
    "a ring that is too large": [[1, ["level", 1, 2, 32, 1, False, True]]],
    "no label bits": [[1, ["level", 1, 2, 13, 0, False, True]]],
    "marks of too many classes": [[1, ["mark", 1, 252, 13]]],
    "marks of nothing": [[1, ["mark", 0, 2, 13]]],
    "one class to rotate": [[1, ["rotation", 1, 1]]],
    "pointers of eleven bits": [[1, ["bit_conversion", 1, 11, 0, 13]]],
    "nothing to unmask": [[1, ["bit_conversion", 0, 0, 0, 13]]],
}

DEALING = Topic(
    "What binds a session of correlated randomness: the plan's digest, hashes of seeds, the "
    "transcript, the keys of streams, commitments to corrections, the lot and the context. An item "
    "is the list of its kind and its fields; seeds are by rank and copy, keys by copy and rank, "
    "commitments by item with those of all copies side by side. "
    "docs/protocol.md, Encodings and test vectors: Dealing.",
    {
        "plan": _plan,
        "draw": _draw,
        "own_seeds": _own_seeds,
        "commitment": _commitment,
        "copy": _copy,
    },
    [
        Case("plan", "each kind of item", {"runs": _RUNS}),
        Case(
            "plan",
            "what a flag is called",
            {"runs": [[3, ["level", 2, 3, 14, 2, True, False]]]},
        ),
        *(
            Case("plan", name, {"runs": runs}, "DEAL_INVALID")
            for name, runs in _REFUSED_PLANS.items()
        ),
        Case("draw", "two parties, two copies", _DRAWN),
        Case("draw", "two parties, one copy", _drawn_from({**_SMALL, "copies": 1}, 9)),
        Case("draw", "three parties, three copies, several items", _drawn_from(_LARGE, 30)),
        Case(
            "draw",
            "a session of another name has nothing in common with the first",
            {**_DRAWN, "session": "round-3"},
        ),
        *(
            Case(
                "own_seeds",
                f"rank {rank} finds its seeds",
                {**_SMALL, "rank": rank, "seeds": _DRAWN["seeds"][rank], "seed_hashes": _HASHED},
            )
            for rank in range(2)
        ),
        Case(
            "own_seeds",
            "a seed of another copy",
            {**_SMALL, "rank": 0, "seeds": _DRAWN["seeds"][0][::-1], "seed_hashes": _HASHED},
            "COMMITTEE_DISAGREES",
        ),
        Case(
            "own_seeds",
            "the hashes of another rank",
            {**_SMALL, "rank": 1, "seeds": _DRAWN["seeds"][0], "seed_hashes": _HASHED},
            "COMMITTEE_DISAGREES",
        ),
        Case("commitment", "item 0", {"correction": "00ff", "last_key": seed(8), "index": 0}),
        Case("commitment", "item 300", {"correction": "00ff", "last_key": seed(8), "index": 300}),
        Case("commitment", "of nothing", {"correction": "", "last_key": seed(8), "index": 0}),
        *(
            Case("copy", f"of {copies}", {"coins": seeds(3, start=40), "copies": copies})
            for copies in (1, 2, 7, 8, 64)
        ),
    ],
)


def _low(values: Any, bits: int) -> Any:
    """What counts of shares modulo 2^bits."""
    return (np.asarray(values).astype(np.uint64) & np.uint64((1 << bits) - 1)).tolist()


def _shown(item: Item[Any], part: Any) -> Given:
    """A party's part of an item."""
    match item, part:
        case Triples(kind=TripleKind.BIT), TriplePart():
            return {"a": part.a.tolist(), "c": part.c.tolist()}
        case Triples(), TriplePart():
            return {"a": part.a.tolist(), "b": part.b.tolist(), "c": part.c.tolist()}
        case LevelTables(), LevelPart():
            wins = item.win_bits
            tables = zip(part.chosen, item.widths, strict=True)
            return {
                "r": _low(part.r, item.bits),
                "s": _low(part.s, wins),
                "q": None if part.q is None else _low(part.q, item.label_bits),
                "tables": [table.tolist() for table in part.tables],
                "coefficients": _low(part.coefficients, wins),
                "chosen": [_low(table, width) for table, width in tables],
            }
        case MarkTables(), MarkPart():
            return {
                "r": _low(part.r, item.bits),
                "tables": [table.tolist() for table in part.tables],
                "coefficients": part.coefficients.tolist(),
                "units": part.units.tolist(),
            }
        case Rotation(), RotationPart():
            bits = item.places.bit_length() - 1
            return {"position": _low(part.position, bits), "unit": part.unit.tolist()}
        case BitConversion(), BitConversionPart():
            return {
                "pointer_masks": part.pointer_masks.tolist(),
                "units": _low(part.units, item.ring_bits),
                "flag_masks": part.flag_masks.tolist(),
                "flags": _low(part.flags, item.ring_bits),
            }
    raise TypeError(f"no part of {type(item).__name__} is shown")


def _correct(given: Given) -> Given:
    item, keys, index = _item(given["item"]), from_hex(given["keys"]), given["index"]
    correction = item.correct(keys, index)
    assert len(correction) == item.correction_bytes
    corrections = [None] * (len(keys) - 1) + [correction]
    parts = [item.expand(key, index, own) for key, own in zip(keys, corrections, strict=True)]
    return {"correction": correction.hex(), "parts": [_shown(item, part) for part in parts]}


def _expand_last(given: Given) -> Given:
    item, correction = _item(given["item"]), bytes.fromhex(given["correction"])
    part = item.expand(bytes.fromhex(given["key"]), given["index"], correction)
    return {"part": _shown(item, part)}


_ITEMS: dict[str, tuple[list[Any], int]] = {
    "products": (["triples", 1, 3], 0),
    "conjunctions": (["triples", 2, 3], 1),
    "bits": (["triples", 3, 9], 2),
    "a level that is the only one": (["level", 1, 2, 13, 1, False, True], 0),
    "a first level of several": (["level", 2, 3, 14, 2, False, False], 7),
    "a level between": (["level", 1, 3, 14, 5, True, False], 8),
    "the last level of several": (["level", 1, 2, 31, 64, True, True], 9),
    "a level of the least ring": (["level", 2, 3, 3, 2, False, True], 13),
    "marks": (["mark", 2, 3, 13], 14),
    "marks of many classes in a large ring": (["mark", 1, 12, 20], 15),
    "one-hot rows": (["rotation", 2, 3], 10),
    "pointers and flags": (["bit_conversion", 2, 2, 9, 13], 11),
    "flags": (["bit_conversion", 0, 0, 5, 20], 2**32 + 5),
    "pointers": (["bit_conversion", 1, 1, 0, 64], 12),
}

CORRECTIONS = Topic(
    "Each kind of correlated randomness: from the keys of all parties, by rank, the last party's "
    "correction of item number `index`, and every party's part, nested in the order of the "
    "documented shape. Of numbers that are shared modulo a power of two the bits that count are "
    "shown. Integers have up to 64 bits. "
    "docs/protocol.md, Encodings and test vectors: Items.",
    {"correct": _correct, "expand_last": _expand_last},
    [
        *(
            Case(
                "correct",
                f"{name}, {parties} parties",
                {"item": item, "keys": seeds(parties, start=index % 97), "index": index},
            )
            for name, (item, index) in _ITEMS.items()
            for parties in (2, 3)
        ),
        *(
            Case(
                "expand_last",
                f"a correction of one byte: {name}",
                {"item": item, "key": seed(1), "index": index, "correction": "00"},
                "ValueError",
            )
            for name, (item, index) in _ITEMS.items()
        ),
    ],
)
