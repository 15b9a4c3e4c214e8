"""What one party sends tells the others nothing of the totals even if they send what they like.

docs/security.md, Theorem 4, part (ii): preprocessing is dealt as it should be, and all parties but
one are malicious and rushing: they see what the honest one sends in a round before they choose what
the round opens. Everything that it sends, and everything that they can make of it with what they
were dealt, must be uniform still. Only the labels are theirs to spoil.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from mpc_vote.mpc.prg import SeedStream, new_seed
from tests.security.argmax.test_table_view import (
    BITS,
    CLASSES,
    WORLDS,
    Flaw,
    alpha_is_zero,
    by_row,
    every_grouping,
    every_honest,
    every_world,
    flawed_dealer,
    none,
    own_r_is_zero,
    own_s_is_zero,
    shape_of,
)
from tests.unit.argmax.committee import share
from tests.unit.argmax.dealt import Array, added, tables_together
from tests.unit.argmax.transcript import (
    Handed,
    Line,
    Transcript,
    honest_dealer,
    pack,
    replay,
    unpack,
)
from tests.unit.argmax.uniformity import Seen, View, suspicions

# From what the honest party sent, the values that the round opens.
Attack = Callable[[Array], Array]


def nothing(sent: Array) -> Array:
    """Every round opens zeros: all tables are looked up at the same place."""
    return np.zeros_like(sent)


def echo(sent: Array) -> Array:
    """What is opened is the honest party's share itself."""
    return sent


def anything(sent: Array) -> Array:
    return SeedStream(new_seed()).words(sent.size).reshape(sent.shape)


every_attack = pytest.mark.parametrize("attack", [nothing, echo, anything])


def attacked(seen: Transcript, honest: int, attack: Attack) -> None:
    """Runs the honest party against the others; every round opens what they choose."""
    shape = seen.shape

    def exchange(payload: bytes) -> Sequence[bytes]:
        openings = shape.rounds[len(seen.payloads)]
        sent = unpack(openings, payload)
        rest = [attack(one) - one for one in sent]
        xor = [attack(one) ^ one for one in sent]
        chosen = [x if o.what == "bits" else r for o, r, x in zip(openings, rest, xor, strict=True)]
        zeros = pack(openings, [np.zeros_like(one) for one in sent])
        payloads = [zeros] * shape.parties
        payloads[honest] = payload
        payloads[honest - 1] = pack(openings, chosen)
        seen.payloads.append(payloads)
        return payloads

    line = Line(honest, shape.parties, exchange)
    preprocessing = Handed(shape.items, seen.parts[honest])
    shape.engine.winners(seen.inputs[honest], shape.classes, line, preprocessing)


def view_of(seen: Transcript, honest: int) -> View:
    """What the honest party sent, and what the others make of it with their shares and parts."""
    found: View = {}
    coalition = [rank for rank in range(seen.shape.parties) if rank != honest]
    # What the others would have sent, had they followed the protocol on what was opened.
    due = [replay(seen, rank, seen.inputs[rank], seen.parts[rank])[0] for rank in coalition]

    def add(name: str, array: Array, bits: int) -> None:
        values = by_row(array.astype(np.uint64)) & np.uint64((1 << bits) - 1)
        found[name] = Seen(values, bits)

    for number, level in enumerate(seen.shape.items):
        parts = [seen.parts[rank][number] for rank in coalition]
        masks = {
            "totals": [part.r for part in parts],
            "labels": [part.q for part in parts if part.q is not None],
            "wins": [part.s for part in parts],
        }
        for place in range(3 * number, 3 * number + 3):
            openings = seen.shape.rounds[place]
            shares = [unpack(openings, sent[place]) for sent in due]
            for which, opening in enumerate(openings):
                name = f"level {number}, {opening.what}"
                sent = seen.shares(place)[honest][which]
                value = added([sent, *[one[which] for one in shares]], opening.bits)
                if opening.what != "bits":
                    value = value - added(masks[opening.what], opening.bits)
                add(f"{name}: sent", sent, opening.bits)
                add(f"{name}: behind the honest mask", value, opening.bits)
        wins = level.win_bits
        add(f"level {number}, parts: tables", tables_together(parts), 64)
        coefficients = added([part.coefficients for part in parts], wins)
        add(f"level {number}, parts: coefficients", coefficients, wins)
        for table, width in enumerate(level.widths):
            chosen = added([part.chosen[table] for part in parts], width)
            add(f"level {number}, parts: chosen {table}", chosen, width)
    return found


def noticed(
    groups: tuple[int, ...],
    parties: int,
    honest: int,
    world: str,
    attack: Attack,
    flaw: Flaw | None = None,
) -> set[str]:
    shape = shape_of(groups, parties)
    dealer = honest_dealer() if flaw is None else flawed_dealer(flaw, honest)
    by_level = [dealer(level, parties) for level in shape.items]
    inputs = share(WORLDS[world], parties, BITS)
    seen = Transcript(shape, inputs, [[parts[r] for parts in by_level] for r in range(parties)])
    attacked(seen, honest, attack)
    return suspicions(view_of(seen, honest))


@every_grouping
@every_honest
@every_attack
@every_world
def test_what_an_honest_party_sends_is_uniform_whatever_it_is_sent(
    groups: tuple[int, ...], parties: int, honest: int, attack: Attack, world: str
) -> None:
    """False alarms: below 1e-6 for all of these together."""
    assert noticed(groups, parties, honest, world, attack) == set()


@pytest.mark.parametrize("honest", [0, 2])
@pytest.mark.parametrize(
    ("flaw", "where"),
    [
        (alpha_is_zero, "level 0, bits: behind the honest mask"),
        (own_r_is_zero, "level 0, totals: behind the honest mask"),
        (own_s_is_zero, "level 0, wins: behind the honest mask"),
    ],
)
def test_a_missing_mask_is_noticed(flaw: Flaw, where: str, honest: int) -> None:
    assert noticed((), 3, honest, "all tie", nothing, none) == set()
    assert where in noticed((), 3, honest, "all tie", nothing, flaw)


def test_there_are_classes_to_tell_apart() -> None:
    assert len(np.unique(WORLDS["random"].argmax(axis=1))) == CLASSES
