"""Known answers of what parties open to each other, and of the shares that they end with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any
from unittest import mock

import numpy as np

from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.mpc import ring
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import Preprocessing
from mpc_vote.mpc.prg import SeedStream, Words
from mpc_vote.mpc.sharing import Share
from mpc_vote.privacy.coins import CoinLaw
from mpc_vote.verified.encoding import BitReader, Layout
from mpc_vote.verified.summation import Summation
from tests.security.vectors.shares import from_hex, seeds
from tests.security.vectors.topic import Case, Topic

Given = dict[str, Any]


class Heard:
    """A channel that remembers what came in each exchange, by rank."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.rank, self.size, self.traffic = channel.rank, channel.size, channel.traffic
        self.previous_stream, self.next_stream = channel.previous_stream, channel.next_stream
        self.exchanges: list[list[bytes]] = []

    def exchange(self, payload: bytes) -> Sequence[bytes]:
        self.exchanges.append(list(self._channel.exchange(payload)))
        return self.exchanges[-1]


def _together(
    given: Given, bits: int, program: Callable[[Heard, Preprocessing], Words]
) -> tuple[list[list[int]], list[list[str]]]:
    """All parties' results, of which so many bits count, and what they sent."""

    def party(
        channel: Channel, preprocessing: Preprocessing
    ) -> tuple[list[int], list[list[bytes]]]:
        heard = Heard(channel)
        found = program(heard, preprocessing) & np.uint64((1 << bits) - 1)
        return found.tolist(), heard.exchanges

    drawn = from_hex(given["zero_seeds"]) + from_hex(given["keys"])
    with mock.patch("mpc_vote.mpc.in_process.new_seed", side_effect=drawn):
        ended = run_committee(len(given["keys"]), party)
    sent = [[payload.hex() for payload in exchange] for exchange in ended[0][1]]
    return [shares for shares, _ in ended], sent


def _argmax(given: Given) -> Given:
    classes, shares = given["classes"], [np.array(own, np.uint64) for own in given["totals"]]
    engine = TableArgmax(given["bits"], given["groups"])
    bits = engine.label_bits(classes)

    def program(channel: Heard, preprocessing: Preprocessing) -> Words:
        return engine.run(shares[channel.rank].reshape(-1), classes, channel, preprocessing)

    labels, sent = _together(given, bits, program)
    opened = np.add.reduce(labels) % (1 << bits)
    return {"exchanges": sent, "label_shares": labels, "labels": opened.tolist()}


def _marks(given: Given) -> Given:
    classes, shares = given["classes"], [np.array(own, np.uint64) for own in given["totals"]]
    engine = TableArgmax(given["bits"], two_rounds=True)
    code = engine.label_code(classes)

    def program(channel: Heard, preprocessing: Preprocessing) -> Words:
        return engine.run(shares[channel.rank].reshape(-1), classes, channel, preprocessing)

    found, sent = _together(given, ring.WORD_BITS, program)
    shares = [np.array(own, np.uint64) for own in found]
    return {
        "exchanges": sent,
        "label_shares": [code.pack(own).hex() for own in shares],
        "labels": code.labels(np.add.reduce(shares)).tolist(),
    }


def _count(given: Given) -> Given:
    layouts = tuple(Layout(**layout) for layout in given["layouts"])
    law = CoinLaw(tuple((weight, number) for weight, number in given["law"]))
    count = Summation(layouts, given["queries"], given["bits"], law)

    def program(channel: Heard, preprocessing: Preprocessing) -> Words:
        readers = []
        for agent, layout in zip(given["shares"], layouts, strict=True):
            share = (
                None
                if agent is None
                else {k: bytes.fromhex(v) for k, v in agent[channel.rank].items()}
            )
            readers.append(None if share is None else BitReader(Share(**share), layout))
        coins = SeedStream(bytes.fromhex(given["coins"][channel.rank])).take
        return count.run(readers, channel, preprocessing, coins)

    totals, sent = _together(given, given["bits"], program)
    opened = np.add.reduce([np.array(own, np.uint64) for own in totals]) % (1 << given["bits"])
    return {"exchanges": sent, "total_shares": totals, "totals": opened.tolist()}


def _shared(totals: list[list[int]], parties: int, bits: int) -> list[list[list[int]]]:
    """Some shares of totals, by rank; that they look regular is of no concern here."""
    ring = 1 << bits
    own = [
        [
            [(7919 * (rank + 1) * (31 * r + c + 1)) % ring for c in range(len(row))]
            for r, row in enumerate(totals)
        ]
        for rank in range(parties - 1)
    ]
    rest = [
        [(x - sum(share[r][c] for share in own)) % ring for c, x in enumerate(row)]
        for r, row in enumerate(totals)
    ]
    return [*own, rest]


def _contest(totals: list[list[int]], parties: int, bits: int, groups: list[int] | None) -> Given:
    return {
        "bits": bits,
        **({} if groups is None else {"groups": groups}),
        "classes": len(totals[0]),
        "totals": _shared(totals, parties, bits),
        "keys": seeds(parties, start=60),
        "zero_seeds": seeds(parties, start=130),
    }


_POINTED = asdict(Layout(classes=3, unit=16))
_COUNTED = [asdict(Layout(classes=2, unit=16, votes=votes)) for votes in (1, 3)]
_FLAGGED = asdict(Layout(classes=2, unit=16, votes=2, attributes=True))


def _ballots(layouts: list[Given], queries: int, parties: int, absent: Sequence[int] = ()) -> Given:
    """Shares of any bits: all are ballots. An agent that is absent has none."""
    shares: list[list[Given] | None] = []
    for place, layout in enumerate(layouts):
        size = Layout(**layout).share_bytes(queries)
        packed = bytes((37 * (place + 1) * (n + 1)) % 256 for n in range(size)).hex()
        own: list[Given] = [{"seed": seed} for seed in seeds(parties - 1, start=40 * place)]
        own.insert(place % parties, {"packed": packed})
        shares.append(None if place in absent else own)
    return {
        "layouts": layouts,
        "queries": queries,
        "bits": 13,
        "law": [[1, 4], [3, 2]],
        "shares": shares,
        "coins": seeds(parties, start=90),
        "keys": seeds(parties, start=61),
        "zero_seeds": seeds(parties, start=131),
    }


PARTIES = Topic(
    "What parties open to each other, exchange by exchange and by rank, in the table engine's "
    "argmax, in three rounds for each level or in two, and when verified ballots are counted; and "
    "the shares that they end with. Parties begin with `totals` or `shares`, and with the `keys` "
    "of the copy in use; `coins` stands for what each draws for the noise. "
    "docs/protocol.md, Encodings and test vectors: Openings.",
    {"argmax": _argmax, "marks": _marks, "count": _count},
    [
        Case("argmax", "two parties", _contest([[5, -3], [-9, -9], [0, 1]], 2, 13, [])),
        Case("argmax", "three parties", _contest([[16, 40, 40], [2047, -2047, 0]], 3, 13, [])),
        Case(
            "argmax", "groups, of which one is not full", _contest([[1, 7, 3, 7, 2]], 3, 14, [2, 3])
        ),
        Case("argmax", "three levels", _contest([[-1, -2, -3, -4, 99, 5, 6]], 2, 20, [2, 2, 2])),
        Case("marks", "two parties", _contest([[5, -3], [-9, -9], [0, 1]], 2, 13, None)),
        Case("marks", "three parties", _contest([[16, 40, 40, -7], [31, -31, 0, 31]], 3, 8, None)),
        Case("marks", "many classes", _contest([[5 * c % 23 for c in range(12)]], 2, 14, None)),
        Case("count", "a pointer each", _ballots([_POINTED] * 3, 2, 3)),
        Case("count", "an agent is absent", _ballots([_POINTED] * 3, 2, 3, absent=[1])),
        Case("count", "counts of different k", _ballots(_COUNTED, 3, 2)),
        Case("count", "attributes", _ballots([_FLAGGED] * 2, 3, 2)),
    ],
)
