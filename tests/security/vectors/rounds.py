"""Known answers of a round: ballots, their bits where they are verified, specs and contexts."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any
from unittest import mock

import numpy as np

from aggregator.party.offline import deal_context, stock_context, stock_session
from aggregator.party.servicer import count_context
from mpc_vote.argmax.engine import AddedLabels
from mpc_vote.argmax.registry import ENGINES
from mpc_vote.privacy import coins
from mpc_vote.proto.mpcvote.v1 import common_pb2, party_pb2
from mpc_vote.tasks import Task
from mpc_vote.transport import tensors
from mpc_vote.verified import encoding as verified
from mpc_vote.verified.encoding import Layout
from mpc_vote.voting.ballots import KNN_COUNT, KNN_FREQUENCY, MULTI_LABEL, ONE_HOT, BallotKind
from mpc_vote.voting.spec import Spec
from tests.security.vectors.shares import seed
from tests.security.vectors.topic import Case, Topic

Given = dict[str, Any]


def _encoded(kind: BallotKind, votes: Any, **public: int) -> Given:
    return {"ballot": kind.encode(votes, **public).tolist()}


def _one_hot(given: Given) -> Given:
    public = dict(given)
    return _encoded(ONE_HOT, public.pop("labels"), **public)


def _knn_frequency(given: Given) -> Given:
    public = dict(given)
    counts = public.pop("counts")
    return _encoded(KNN_FREQUENCY, counts, classes=len(counts[0]), **public)


def _knn_count(given: Given) -> Given:
    public = dict(given)
    counts = public.pop("counts")
    return _encoded(KNN_COUNT, counts, classes=len(counts[0]), **public)


def _multi_label(given: Given) -> Given:
    public = dict(given)
    scores = public.pop("scores")
    return _encoded(MULTI_LABEL, scores, classes=len(scores[0]), **public)


_COUNTS = [[3, 0, 2], [0, 1, 0], [0, 0, 0]]

BALLOTS = Topic(
    "What an agent says, in units of 2^-fraction_bits votes, (queries, classes). "
    "docs/protocol.md, Numbers.",
    {
        "one_hot": _one_hot,
        "knn_frequency": _knn_frequency,
        "knn_count": _knn_count,
        "multi_label": _multi_label,
    },
    [
        Case("one_hot", "-1 is no vote", {"labels": [2, 0, -1], "classes": 3, "fraction_bits": 4}),
        Case(
            "one_hot",
            "no such class",
            {"labels": [3], "classes": 3, "fraction_bits": 4},
            "ValueError",
        ),
        Case(
            "one_hot", "too fine", {"labels": [0], "classes": 3, "fraction_bits": 25}, "ValueError"
        ),
        Case("knn_frequency", "rounded down", {"counts": _COUNTS, "k": 5, "fraction_bits": 7}),
        Case(
            "knn_frequency",
            "more than k",
            {"counts": _COUNTS, "k": 4, "fraction_bits": 7},
            "ValueError",
        ),
        Case("knn_count", "a vote a neighbour", {"counts": _COUNTS, "k": 5, "fraction_bits": 4}),
        Case(
            "knn_count",
            "fewer than none",
            {"counts": [[-1, 1]], "k": 5, "fraction_bits": 4},
            "ValueError",
        ),
        Case(
            "multi_label",
            "above a half, and of those the tau highest, the lower first where they tie",
            {
                "scores": [[0.5, 0.75, 0.25], [0.9, 0.9, 0.9], [0.6, 0.7, 0.8], [0.1, 0.2, 0.3]],
                "tau": 2,
                "fraction_bits": 4,
            },
        ),
        Case(
            "multi_label", "no tau", {"scores": [[0.5]], "tau": 0, "fraction_bits": 4}, "ValueError"
        ),
    ],
)


def _encode(given: Given) -> Given:
    layout = Layout(**given["layout"])
    ballot = np.array(given["ballot"], np.int64)
    orders = np.array(given["orders"], np.int64).reshape(len(ballot), -1)
    with mock.patch.object(verified, "random_orders", return_value=orders):
        bits = verified.encode(layout, ballot)
    packed = np.packbits(bits, bitorder="little").tobytes()
    assert len(packed) == layout.share_bytes(len(ballot))
    return {
        "pointers": layout.pointers,
        "pointer_bits": layout.pointer_bits,
        "flags": layout.flags,
        "bits": ["".join(map(str, row)) for row in bits.tolist()],
        "packed": packed.hex(),
    }


_POINTER = asdict(Layout(classes=3, unit=16))
_POINTERS = asdict(Layout(classes=4, unit=16, votes=3))
_ATTRIBUTES = asdict(Layout(classes=3, unit=16, votes=2, attributes=True))


def _encoding(layout: Given, ballot: list[Any], orders: list[Any]) -> Given:
    return {"layout": layout, "ballot": ballot, "orders": orders}


ENCODING = Topic(
    "A verified ballot, in units, as bits: pointers or flags of votes. `orders` stands for what an "
    "agent draws: the pointer at place j is number orders[j] of the sorted ones. `bits` has a text "
    "for each query, in order. "
    "docs/protocol.md, Encodings and test vectors: Verified ballots.",
    {"encode": _encode},
    [
        Case(
            "encode",
            "one pointer",
            _encoding(
                _POINTER,
                [[0, 16, 0], [0, 0, 16], [0, 0, 0]],
                [[0], [0], [0]],
            ),
        ),
        Case(
            "encode",
            "three pointers; those that are left over point to no class",
            _encoding(
                _POINTERS,
                [[32, 0, 16, 0], [0, 0, 0, 48], [0, 16, 0, 0]],
                [[0, 1, 2], [1, 2, 0], [2, 0, 1]],
            ),
        ),
        Case(
            "encode",
            "attributes",
            _encoding(_ATTRIBUTES, [[16, 0, 16], [0, 0, 0]], [[0, 1], [1, 0]]),
        ),
        Case(
            "encode",
            "two votes by one pointer",
            _encoding(_POINTER, [[16, 16, 0]], [[0]]),
            "ValueError",
        ),
        Case(
            "encode",
            "half a vote",
            _encoding(_POINTER, [[8, 0, 0]], [[0]]),
            "ValueError",
        ),
        Case(
            "encode",
            "less than none",
            _encoding(_POINTER, [[-16, 0, 0]], [[0]]),
            "ValueError",
        ),
        Case(
            "encode",
            "two votes for an attribute",
            _encoding(_ATTRIBUTES, [[32, 0, 0]], [[0, 1]]),
            "ValueError",
        ),
        Case(
            "encode",
            "more attributes than tau",
            _encoding(_ATTRIBUTES, [[16, 16, 16]], [[0, 1]]),
            "ValueError",
        ),
    ],
)


def _law(given: Given) -> Given:
    bits, law = coins.fraction_bits_for(given["sigma"]), coins.law_for(given["sigma"])
    return {
        "fraction_bits": bits,
        "levels": [list(level) for level in law.levels],
        "reach": law.reach,
        "variance_quarters": int(4 * law.variance),
    }


COINS = Topic(
    "The coins of a cell in a verified round: weights and numbers, lightest first, for a sigma in "
    "votes; of a vote that is 2^fraction_bits units. Their variance is in quarters of units^2. "
    "docs/protocol.md, Encodings and test vectors: Coins.",
    {"law": _law},
    [
        *(
            Case("law", f"sigma {sigma:g}", {"sigma": sigma})
            for sigma in (0.05, 0.3, 0.5, 1.0, 2.5, 3.99, 4.0, 8.0, 15.0, 25.0, 40.0, 100.0)
        ),
        *(
            Case("law", f"sigma {sigma:g}", {"sigma": sigma})
            for sigma in (33.3, 212.0, 1000.0, 4321.5, 20_000.0)
        ),
        Case("law", "less than can be drawn", {"sigma": 0.04}, "ValueError"),
        Case("law", "more than can be drawn", {"sigma": 20_000.5}, "ValueError"),
    ],
)


def _message(fields: Given) -> common_pb2.RoundSpec:
    named = ("queries_digest", "task_digest")
    digests = {name: bytes.fromhex(fields[name]) for name in named if name in fields}
    return common_pb2.RoundSpec(**{**fields, **digests})


def _seal(given: Given) -> Given:
    """What a spec is on the wire, and what everybody derives from it."""
    spec = Spec.seal(_message(given))
    plan = spec.plan()
    engine = ENGINES.by_code(spec.message.engine)
    assert engine is not None
    return {
        "wire": spec.wire.hex(),
        "digest": spec.digest.hex(),
        "total_bound": spec.total_bound,
        "ring_bits": engine.ring_bits(spec.total_bound),
        "agent_variance": None if spec.message.verified else spec.agent_variance,
        "coins": [list(level) for level in spec.coin_law.levels] if spec.message.verified else [],
        "rows": spec.rows,
        "row_classes": spec.row_classes,
        "plan_items": plan.items,
        "plan_digest": plan.digest.hex(),
        "share_bytes": {agent: spec.share_bytes(agent) for agent in spec.roster},
        "explicit_rank": {agent: spec.explicit_rank(agent) for agent in spec.roster},
    }


def _parse(given: Given) -> Given:
    return {"digest": Spec.parse(bytes.fromhex(given["wire"])).digest.hex()}


_KS = {"ada": 3, "bob": 5, "cleo": 4, "dan": 3}
_BASE: Given = {
    "round_id": "round-1",
    "queries_digest": seed(0),
    "queries": 3,
    "query_dtype": "DTYPE_FLOAT32",
    "query_shape": [8, 8],
    "classes": 4,
    "ballot": "BALLOT_KIND_ONE_HOT",
    "fraction_bits": 4,
    "sigma": 2.5,
    "roster": [{"agent": agent} for agent in _KS],
    "quorum": 3,
    "collusion": 1,
    "parties": ["alpha", "beta", "gamma"],
    "dealer": "dora",
    "engine": "ENGINE_TABLE",
    "ring_bits": 12,
    "deadline_unix_ms": 4102444800000,
}
_CRYPTEN = {"engine": "ENGINE_CRYPTEN_PAIRWISE", "ring_bits": 64}
_COUNT = {
    "ballot": "BALLOT_KIND_KNN_COUNT",
    "roster": [{"agent": agent, "k": k} for agent, k in _KS.items()],
}
_FREQUENCY = {**_COUNT, "ballot": "BALLOT_KIND_KNN_FREQUENCY", "fraction_bits": 7, "ring_bits": 15}
_ATTRIBUTE = {"ballot": "BALLOT_KIND_MULTI_LABEL", "tau": 2}
_VERIFIED = {"verified": True, "collusion": 0, "fraction_bits": 1, "ring_bits": 8}
_GOOD: dict[str, Given] = {
    "one-hot votes, the table engine": {},
    "groups": {"classes": 10, "groups": [4, 3]},
    "frequencies": _FREQUENCY,
    "counts": _COUNT,
    "attributes": _ATTRIBUTE,
    "two rounds": {"two_rounds": True},
    "verified one-hot votes": _VERIFIED,
    "verified counts": {
        **_COUNT,
        **_VERIFIED,
        **{"sigma": 25.0, "fraction_bits": 0, "ring_bits": 10},
    },
    "verified attributes": {**_ATTRIBUTE, **_VERIFIED},
    "two parties": {"parties": ["alpha", "beta"]},
    "of a task": {"task": "sepsis", "task_digest": seed(1)},
    **{
        f"CrypTen's {method.lower()}": {**_CRYPTEN, "engine": f"ENGINE_CRYPTEN_{method}"}
        for method in ("PAIRWISE", "LOG_REDUCTION", "DOUBLE_LOG_REDUCTION", "ACCELERATED_CASCADE")
    },
    "attributes, CrypTen": {**_ATTRIBUTE, **_CRYPTEN},
}
_BAD: dict[str, Given] = {
    "no queries": {"queries": 0},
    "a short digest": {"queries_digest": "00"},
    "one class": {"classes": 1},
    "no ballot kind": {"ballot": 0},
    "no engine": {"engine": 0},
    "no dtype": {"query_dtype": 0},
    "no shape": {"query_shape": []},
    "another ring": {"ring_bits": 14},
    "two rounds in groups": {"classes": 10, "groups": [4, 3], "two_rounds": True},
    "two rounds of too many classes": {"classes": 252, "two_rounds": True},
    "two rounds of CrypTen": {**_CRYPTEN, "two_rounds": True},
    "no noise": {"sigma": 0.0},
    "too much noise": {**_CRYPTEN, "sigma": 1e4},
    "all may collude": {"collusion": 3},
    "a quorum above the roster": {"quorum": 5},
    "an agent twice": {"roster": [{"agent": "ada"}] * 3},
    "one party": {"parties": ["alpha"]},
    "a party's name in capitals": {"parties": ["Alpha", "beta"]},
    "no dealer": {"dealer": ""},
    "a task without its digest": {"task": "sepsis"},
    "a digest without a task": {"task_digest": seed(1)},
    "a task's name in capitals": {"task": "Sepsis", "task_digest": seed(1)},
    "a short digest of the task": {"task": "sepsis", "task_digest": "00"},
    "counts without k": {"ballot": "BALLOT_KIND_KNN_COUNT"},
    "attributes without tau": {"ballot": "BALLOT_KIND_MULTI_LABEL"},
    "groups that leave two classes": {"groups": [2]},
    "verified frequencies": {**_FREQUENCY, **_CRYPTEN, "verified": True},
    "coins that some agents know": {**_VERIFIED, "collusion": 1},
    "coins in other units": {**_VERIFIED, "fraction_bits": 4},
    "more noise than the committee draws": {**_VERIFIED, "sigma": 20_001.0, "fraction_bits": 0},
    "totals that no ring of the engine holds": {
        **_COUNT,
        "fraction_bits": 24,
        "sigma": 0.001,
        "roster": [{"agent": agent, "k": 1 << 20} for agent in _KS],
        "ring_bits": 31,
    },
}
_OTHER_REFUSALS = {
    "no dtype": "METHOD_UNKNOWN",
    "totals that no ring of the engine holds": "RANGE_OVERFLOW",
}

_WIRE = Spec.seal(_message(_BASE)).wire.hex()
_SIGMA_AGAIN = common_pb2.RoundSpec(sigma=_BASE["sigma"]).SerializeToString().hex()

SPEC = Topic(
    "A round's spec: its fields, its bytes, whose SHA-256 roles compare, and what follows from it. "
    "A valid one with one change that makes it invalid is refused under the given name. "
    "docs/protocol.md, A round and Numbers; protos/mpcvote/v1/common.proto.",
    {"seal": _seal, "parse": _parse},
    [
        *(Case("seal", name, {**_BASE, **change}) for name, change in _GOOD.items()),
        *(
            Case("seal", name, {**_BASE, **change}, _OTHER_REFUSALS.get(name, "SPEC_INVALID"))
            for name, change in _BAD.items()
        ),
        Case("parse", "as it was sealed", {"wire": _WIRE}),
        Case("parse", "the same in other bytes is another spec", {"wire": _WIRE + _SIGMA_AGAIN}),
        Case("parse", "no message at all", {"wire": "ffffffff"}, "SPEC_INVALID"),
        Case("parse", "a field that is cut short", {"wire": "0a07726f"}, "SPEC_INVALID"),
        Case("parse", "nothing", {"wire": ""}, "SPEC_INVALID"),
    ],
)


def _deal_context(given: Given) -> Given:
    spec = Spec.parse(bytes.fromhex(given["spec"]))
    return {"context": deal_context(spec, bytes.fromhex(given["transcript"])).hex()}


def _stock_context(given: Given) -> Given:
    spec = Spec.parse(bytes.fromhex(given["spec"]))
    return {"context": stock_context(spec).hex(), "session": stock_session(spec)}


def _count_context(given: Given) -> Given:
    spec = Spec.parse(bytes.fromhex(given["spec"]))
    holdings = [
        party_pb2.Holding(agent=agent, submission_id=bytes.fromhex(submission))
        for agent, submission in given["contributors"]
    ]
    return {"context": count_context(spec, holdings, bytes.fromhex(given["drawn"])).hex()}


def _task(given: Given) -> Given:
    return {"digest": Task.from_wire(json.dumps(given).encode()).digest.hex()}


def _queries(given: Given) -> Given:
    rows = np.array(given["rows"], given["dtype"])
    return {"digest": tensors.digest_of(rows).hex()}


def _labels(given: Given) -> Given:
    return {"wire": AddedLabels(1_000).pack(np.array(given["labels"], np.uint64)).hex()}


def _tensor(given: Given) -> Given:
    data = bytes.fromhex(given["data"])
    message = common_pb2.Tensor(dtype=given["dtype"], shape=given["shape"], data=data)
    return {"rows": tensors.from_tensor(message).tolist()}


_HELD = [["bob", "01" * 16], ["ada", "02" * 16], ["cleo", "03" * 16]]
_TASK: Given = {
    "vote": {"k": 50, "reach": 0.07, "ballot": "knn_count"},
    "format": 1,
    "name": "sepsis",
    "classes": ["no", "s\u00ed"],
    "input": {
        "kind": "table",
        "label": "died",
        "columns": [
            {"scale": 16.0, "center": 61.5, "kind": "number", "name": "age"},
            {"name": "ward", "kind": "category", "values": ["day", "night"]},
        ],
    },
    "features": {"map": "standard"},
}
_FLOATS = {"dtype": "DTYPE_FLOAT32", "shape": [2, 1], "data": "0000803f000020c0"}

CONTEXTS = Topic(
    "What parties agree on before they draw a copy, look into their stocks and count, the digests "
    "of queries and tasks, and how queries and shares of labels travel. "
    "docs/protocol.md, Encodings and test vectors: Contexts.",
    {
        "deal_context": _deal_context,
        "stock_context": _stock_context,
        "count_context": _count_context,
        "queries": _queries,
        "task": _task,
        "labels": _labels,
        "tensor": _tensor,
    },
    [
        Case("deal_context", "of a session", {"spec": _WIRE, "transcript": seed(1)}),
        Case("stock_context", "of a round", {"spec": _WIRE}),
        Case(
            "count_context",
            "agents are sorted by name",
            {"spec": _WIRE, "drawn": seed(2), "contributors": _HELD},
        ),
        Case(
            "count_context",
            "in another order",
            {"spec": _WIRE, "drawn": seed(2), "contributors": _HELD[::-1]},
        ),
        Case(
            "count_context",
            "with another submission",
            {"spec": _WIRE, "drawn": seed(2), "contributors": [*_HELD[:2], ["cleo", "04" * 16]]},
        ),
        Case("queries", "rows of numbers", {"dtype": "float32", "rows": [[1.0, -2.5], [0.0, 3.5]]}),
        Case(
            "queries", "the dtype counts", {"dtype": "float64", "rows": [[1.0, -2.5], [0.0, 3.5]]}
        ),
        Case("queries", "images", {"dtype": "uint8", "rows": [[[0, 1, 2], [253, 254, 255]]]}),
        Case("queries", "32 bits", {"dtype": "int32", "rows": [[-1, 2]]}),
        Case("queries", "64 bits", {"dtype": "int64", "rows": [[-1], [2]]}),
        Case(
            "queries", "bytes of another kind", {"dtype": "uint16", "rows": [[1]]}, "METHOD_UNKNOWN"
        ),
        Case("task", "in whatever order it is written", _TASK),
        Case("task", "another k", {**_TASK, "vote": {**_TASK["vote"], "k": 20}}),
        Case("task", "one class", {**_TASK, "classes": ["no"]}, "TaskError"),
        Case("labels", "two bytes each", {"labels": [0, 1, 9, 255, 256, 999, 1023]}),
        Case("tensor", "of floats", _FLOATS),
        Case("tensor", "cut short", {**_FLOATS, "data": "0000803f"}, "TENSOR_MALFORMED"),
        Case("tensor", "too long", {**_FLOATS, "data": "00" * 9}, "TENSOR_MALFORMED"),
        Case("tensor", "of no shape", {**_FLOATS, "shape": []}, "TENSOR_MALFORMED"),
        Case("tensor", "of an unknown kind", {**_FLOATS, "dtype": 99}, "METHOD_UNKNOWN"),
    ],
)
