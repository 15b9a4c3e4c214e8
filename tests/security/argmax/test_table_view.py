"""What all parties but one see of a run does not depend on the totals: the table engine's argument.

Two tests of it, for each choice of the one honest party.

Exact: whatever the others have seen, any other totals explain it too. For each view and any totals
there are values of the honest party's and the dealer's secrets under which the honest party sends
the very same bytes and the labels are those of these totals. There are as many such values for all
totals, and all are drawn with the same probability: so the view tells nothing. This is checked on
real runs, by solving for the secrets and letting the engine send.

Statistical: a real view looks like that of a simulator which knows the shape alone. The rows of a
run are independent samples, with fixed totals that are the same in all rows, or with random ones.
Everything that a coalition sees or can compute by pooling is uniform in the simulation, and any two
bits of it independent: so must be the real view. Planted flaws show that a leak would be seen.

A test makes up to eight kinds of comparisons, each of which is wrong with probability 1e-10 (see
`tests.unit.argmax.uniformity`). Chi-square is an approximation far out, so what is claimed is less:
all tests of this file together are wrong with a probability below 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.argmax.table.level import LevelPart, LevelTables
from mpc_vote.mpc.prg import SeedStream, new_seed
from tests.unit.argmax.committee import Totals, record
from tests.unit.argmax.dealt import (
    Array,
    Secrets,
    added,
    differences,
    digit,
    missing_part,
    tables_together,
)
from tests.unit.argmax.transcript import Shape, Transcript, replay, run, simulate, unpack
from tests.unit.argmax.uniformity import FALSE_ALARM, Seen, View, packed, suspicions, told_apart

ROWS, CLASSES, BITS = 4_096, 4, 13

TOP = TableArgmax(BITS).largest_total(CLASSES)
GROUPINGS = [(), (2, 2)]
COMMITTEES = [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]

every_grouping = pytest.mark.parametrize("groups", GROUPINGS, ids=str)
every_honest = pytest.mark.parametrize(("parties", "honest"), COMMITTEES)


def random_totals(seed: int) -> Totals:
    """Near and far totals, with ties among them."""
    rng = np.random.default_rng(seed)
    far = rng.integers(-TOP, TOP, (ROWS, CLASSES), endpoint=True)
    near = rng.integers(-2, 3, (ROWS, CLASSES))
    return np.where(rng.integers(0, 2, (ROWS, 1)) == 1, far, near)


WORLDS: dict[str, Totals] = {
    "all tie": np.zeros((ROWS, CLASSES), dtype=np.int64),
    "extremes": np.tile([-TOP, TOP - 1, -TOP, TOP], (ROWS, 1)),
    "random": random_totals(1),
}
every_world = pytest.mark.parametrize("world", WORLDS)


def shape_of(groups: tuple[int, ...], parties: int) -> Shape:
    return Shape(TableArgmax(BITS, groups), ROWS, CLASSES, parties)


@cache
def real(groups: tuple[int, ...], parties: int, world: str) -> Transcript:
    """One run for all coalitions."""
    return run(shape_of(groups, parties), WORLDS[world])


class TestExactly:
    """Other totals explain the same view."""

    @every_grouping
    @every_honest
    @pytest.mark.parametrize("world", ["all tie", "random"])
    def test_any_other_totals_would_have_looked_the_same(
        self, groups: tuple[int, ...], parties: int, honest: int, world: str
    ) -> None:
        seen = real(groups, parties, world)
        other = random_totals(2)
        assert (other.argmax(axis=1) != WORLDS[world].argmax(axis=1)).sum() > ROWS // 2
        sent, labels = explain(seen, honest, other)
        assert sent == [payloads[honest] for payloads in seen.payloads]
        shares = [labels if rank == honest else seen.labels[rank] for rank in range(parties)]
        together = added(shares, seen.shape.engine.label_bits(CLASSES))
        assert together.tolist() == other.argmax(axis=1).tolist()

    def test_an_explanation_needs_the_right_secrets(self) -> None:
        """The honest party's own preprocessing does not explain other totals."""
        seen = real((), 3, "random")
        inputs = inputs_for(seen, 1, random_totals(2))
        sent, _ = replay(seen, 1, inputs, seen.parts[1])
        assert sent != [payloads[1] for payloads in seen.payloads]


@dataclass(frozen=True)
class Masks:
    """The honest party's masks at one level."""

    r: Array
    s: Array
    q: Array | None


def inputs_for(seen: Transcript, honest: int, totals: Totals) -> Array:
    """The honest party's shares if these were the totals and the others' shares as they are."""
    others = [words for rank, words in enumerate(seen.inputs) if rank != honest]
    words: Array = totals.reshape(-1).view(np.uint64) - np.add.reduce(others)
    return words


def explain(seen: Transcript, honest: int, totals: Totals) -> tuple[list[bytes], Array]:
    """What the honest party sends on other totals, with secrets that were solved for.

    Round by round: the mask of what is sent is what was really sent, less what would be sent
    without a mask. The flips are what was opened, xor what is true.
    """
    inputs = inputs_for(seen, honest, totals)
    levels = seen.shape.items
    masks = []
    for level in levels:
        zero = np.zeros((level.group, level.vectors), np.uint64)
        masks.append(Masks(zero, zero, zero if level.labelled else None))

    def sent_and_labels() -> tuple[list[bytes], Array]:
        parts = [
            explained_part(seen, honest, number, mine, level)
            for number, (level, mine) in enumerate(zip(levels, masks, strict=True))
        ]
        return replay(seen, honest, inputs, parts)

    for number in range(len(levels)):
        for number_of_round in (3 * number, 3 * number + 2):
            openings = seen.shape.rounds[number_of_round]
            payloads = seen.payloads[number_of_round][honest], sent_and_labels()[0][number_of_round]
            was, bare = (unpack(openings, payload) for payload in payloads)
            found = [one - other for one, other in zip(was, bare, strict=True)]
            if number_of_round % 3:
                masks[number] = replace(masks[number], s=found[0])
            else:
                labels = found[1] if len(found) > 1 else None
                masks[number] = replace(masks[number], r=found[0], q=labels)
    return sent_and_labels()


def explained_part(
    seen: Transcript, honest: int, number: int, mine: Masks, level: LevelTables
) -> LevelPart:
    """The honest party's part, given its masks, what was opened and all other parts."""
    others = [parts[number] for rank, parts in enumerate(seen.parts) if rank != honest]
    r = added([mine.r, *[part.r for part in others]], level.bits)
    q = None if mine.q is None else [mine.q, *[part.q for part in others if part.q is not None]]
    public = differences(level, seen.opened(3 * number)[0])
    (bits,) = seen.opened(3 * number + 1)
    rho, count = differences(level, r), len(level.digits)
    alpha, beta = [], []
    for k, (shift, width) in enumerate(level.digits):
        x, y = digit(public, shift, width), digit(rho, shift, width)
        alpha.append(bits[k] ^ (x < y))
        if k < count - 1:
            beta.append(bits[count + k] ^ (x == y))
    secrets = Secrets(
        r,
        added([mine.s, *[part.s for part in others]], level.win_bits),
        None if q is None else added(q, level.label_bits),
        np.stack(alpha),
        np.stack(beta),
    )
    return missing_part(level, secrets, others)


def by_row(array: Array) -> Array:
    """From (..., groups and rows) to rows by positions."""
    return np.moveaxis(array.reshape(*array.shape[:-1], -1, ROWS), -1, 0).reshape(ROWS, -1)


def view(seen: Transcript, honest: int) -> View:
    """Everything that all parties but one see or can make of it by pooling, by name."""
    coalition = [rank for rank in range(seen.shape.parties) if rank != honest]
    found: View = {}

    def add(name: str, array: Array, bits: int) -> None:
        values = by_row(array.astype(np.uint64)) & np.uint64((1 << bits) - 1)
        found[name] = Seen(values, bits)

    for number, level in enumerate(seen.shape.items):
        parts = [seen.parts[rank][number] for rank in coalition]
        own = {
            "totals": [part.r for part in parts],
            "labels": [part.q for part in parts if part.q is not None],
            "wins": [part.s for part in parts],
        }
        for number_of_round in range(3 * number, 3 * number + 3):
            openings = seen.shape.rounds[number_of_round]
            opened, sent = seen.opened(number_of_round), seen.shares(number_of_round)[honest]
            for opening, value, payload in zip(openings, opened, sent, strict=True):
                name = f"level {number}, {opening.what}"
                add(f"{name}: opening", value, opening.bits)
                add(f"{name}: payload", payload, opening.bits)
                if opening.what != "bits":
                    pairs = combinations(value, 2)
                    apart = np.stack([one - other for one, other in pairs])
                    add(f"{name}: differences", apart, opening.bits)
                    masks = added(own[opening.what], opening.bits)
                    add(f"{name}: opening less own masks", value - masks, opening.bits)
        name = f"level {number}, parts"
        wins = level.win_bits
        add(f"{name}: tables", tables_together(parts), 64)
        add(f"{name}: coefficients", added([part.coefficients for part in parts], wins), wins)
        for table, width in enumerate(level.widths):
            shares = [part.chosen[table] for part in parts]
            add(f"{name}: chosen {table}", added(shares, width), width)

    bits = seen.shape.engine.label_bits(CLASSES)
    inputs = added([seen.inputs[rank] for rank in coalition], BITS)
    add("inputs together", inputs.reshape(ROWS, CLASSES).T, BITS)
    for rank in coalition:
        add(f"label shares of {rank}", seen.labels[rank], bits)
    if len(coalition) > 1:
        add("label shares together", added([seen.labels[rank] for rank in coalition], bits), bits)
    return found


def secrets_of(world: str) -> Array | None:
    """Comparisons and winners, as coins; none where they are the same in all rows."""
    if world != "random":
        return None
    totals = WORLDS[world]
    beats = [totals[:, i] >= totals[:, j] for i, j in combinations(range(CLASSES), 2)]
    wins = [totals.argmax(axis=1) == i for i in range(CLASSES)]
    return packed(np.stack([*beats, *wins]))


@every_grouping
@every_honest
class TestStatistically:
    """Real views and simulated ones."""

    @every_world
    def test_what_the_others_see_is_uniform(
        self, groups: tuple[int, ...], parties: int, honest: int, world: str
    ) -> None:
        seen = view(real(groups, parties, world), honest)
        assert suspicions(seen, secrets_of(world)) == set()

    def test_so_it_is_in_the_simulation(
        self, groups: tuple[int, ...], parties: int, honest: int
    ) -> None:
        simulated = view(simulate(shape_of(groups, parties), honest), honest)
        assert suspicions(simulated) == set()
        for world in WORLDS:
            assert told_apart(view(real(groups, parties, world), honest), simulated) == set()


def test_sizes_are_those_of_the_simulation() -> None:
    for groups in GROUPINGS:
        seen = real(groups, 3, "extremes")
        simulated = simulate(shape_of(groups, 3), honest=0)
        assert [[len(p) for p in payloads] for payloads in seen.payloads] == [
            [len(p) for p in payloads] for payloads in simulated.payloads
        ]


class TestLabelShares:
    """What leaves the committee."""

    @pytest.mark.parametrize("groups", [(), (4, 4), (2, 2, 2, 2)], ids=str)
    @pytest.mark.parametrize("parties", [2, 3, 5])
    def test_any_but_one_are_uniform(self, groups: tuple[int, ...], parties: int) -> None:
        """Of one row many times over; false alarms below 1e-6."""
        classes, cells = 13, 16
        totals = np.tile(np.arange(classes) % 11, (ROWS, 1))
        shares = record(TableArgmax(BITS, groups), parties, totals).shares
        tests = 2 * parties
        for honest in range(parties):
            others = [s for rank, s in enumerate(shares) if rank != honest]
            for words in (shares[honest], np.add.reduce(others) % cells):
                counts = np.bincount(words.astype(np.intp), minlength=cells)
                assert len(counts) == cells
                assert stats.chisquare(counts).pvalue > FALSE_ALARM / tests
        assert (np.add.reduce(shares) % cells == 10).all()


@dataclass
class Draft:
    """A level's preprocessing in the making: all shares but the last party's, and the flips."""

    parts: list[LevelPart]
    alpha: Array
    beta: Array


Flaw = Callable[[Draft, int], None]


def flawed_dealer(flaw: Flaw, honest: int) -> Callable[[LevelTables, int], list[LevelPart]]:
    """A dealer that makes valid preprocessing by its definition, but with a flaw."""

    def dealer(level: LevelTables, parties: int) -> list[LevelPart]:
        drawn = [writable(level.expand(new_seed(), 0, None)) for _ in range(parties)]
        flips = SeedStream(new_seed()).bits(level.lookups * level.pairs * level.vectors)
        flips = flips.reshape(level.lookups, level.pairs, level.vectors)
        count = len(level.digits)
        draft = Draft(drawn, flips[:count], flips[count:])
        flaw(draft, honest)
        q = [part.q for part in draft.parts if part.q is not None]
        secrets = Secrets(
            added([part.r for part in draft.parts], level.bits),
            added([part.s for part in draft.parts], level.win_bits),
            added(q, level.label_bits) if q else None,
            draft.alpha,
            draft.beta,
        )
        return [*draft.parts[:-1], missing_part(level, secrets, draft.parts[:-1])]

    return dealer


def writable(part: LevelPart) -> LevelPart:
    return LevelPart(
        part.r.copy(),
        part.s.copy(),
        None if part.q is None else part.q.copy(),
        tuple(table.copy() for table in part.tables),
        part.coefficients.copy(),
        tuple(table.copy() for table in part.chosen),
    )


def none(draft: Draft, honest: int) -> None:
    """All is well."""


def alpha_is_zero(draft: Draft, honest: int) -> None:
    draft.alpha[:] = 0


def beta_is_zero(draft: Draft, honest: int) -> None:
    draft.beta[:] = 0


def two_pairs_have_one_alpha(draft: Draft, honest: int) -> None:
    draft.alpha[:, 1] = draft.alpha[:, 4]


def two_pairs_have_one_beta(draft: Draft, honest: int) -> None:
    draft.beta[:, 1] = draft.beta[:, 4]


def two_digits_have_one_alpha(draft: Draft, honest: int) -> None:
    draft.alpha[0] = draft.alpha[1]


def one_flip_in_four_is_missing(draft: Draft, honest: int) -> None:
    draft.alpha[0, :, ::4] = 0


def r_is_zero(draft: Draft, honest: int) -> None:
    for part in draft.parts:
        part.r[:] = 0


def r_has_a_bit_too_few(draft: Draft, honest: int) -> None:
    for part in draft.parts:
        part.r[:] &= (1 << (BITS - 2)) - 1


def r_is_even(draft: Draft, honest: int) -> None:
    for part in draft.parts:
        part.r[:] &= ~np.uint16(1)


def two_contestants_have_one_r(draft: Draft, honest: int) -> None:
    for part in draft.parts:
        part.r[1] = part.r[0]


def s_is_zero(draft: Draft, honest: int) -> None:
    for part in draft.parts:
        part.s[:] = 0


def two_contestants_have_one_s(draft: Draft, honest: int) -> None:
    for part in draft.parts:
        part.s[1] = part.s[0]


def s_is_r(draft: Draft, honest: int) -> None:
    for part in draft.parts:
        part.s[:] = part.r.astype(np.uint8)


def q_is_zero(draft: Draft, honest: int) -> None:
    for part in draft.parts:
        if part.q is not None:
            part.q[:] = 0


def two_contestants_have_one_q(draft: Draft, honest: int) -> None:
    for part in draft.parts:
        if part.q is not None:
            part.q[1] = part.q[0]


def own_r_is_zero(draft: Draft, honest: int) -> None:
    draft.parts[honest].r[:] = 0


def own_s_is_zero(draft: Draft, honest: int) -> None:
    draft.parts[honest].s[:] = 0


def own_tables_are_zero(draft: Draft, honest: int) -> None:
    for table in draft.parts[honest].tables:
        table[:] = 0


def own_tables_repeat(draft: Draft, honest: int) -> None:
    """Each word is all ones or all zeros: every single bit is still fair."""
    for table in draft.parts[honest].tables:
        table[:] = -(table & 1)


def own_coefficients_are_zero(draft: Draft, honest: int) -> None:
    draft.parts[honest].coefficients[:] = 0


def own_choice_is_zero(draft: Draft, honest: int) -> None:
    for table in draft.parts[honest].chosen:
        table[:] = 0


@cache
def noticed(
    flaw: Flaw, world: str, groups: tuple[int, ...] = (), parties: int = 3, honest: int = 1
) -> set[str]:
    """What is suspicious with a flaw."""
    totals = WORLDS[world]
    seen = view(run(shape_of(groups, parties), totals, flawed_dealer(flaw, honest)), honest)
    return suspicions(seen, secrets_of(world))


class TestFlawsAreNoticed:
    """The same tests on preprocessing that is valid but badly made."""

    @pytest.mark.parametrize("honest", [1, 2])
    def test_preprocessing_by_definition_has_none(self, honest: int) -> None:
        assert noticed(none, "all tie", (2, 2), honest=honest) == set()

    @pytest.mark.parametrize(
        ("flaw", "where"),
        [
            (alpha_is_zero, "level 0, bits: opening"),
            (beta_is_zero, "level 0, bits: opening"),
            (two_pairs_have_one_alpha, "level 0, bits: opening & level 0, bits: opening"),
            (two_pairs_have_one_beta, "level 0, bits: opening & level 0, bits: opening"),
            (two_digits_have_one_alpha, "level 0, bits: opening & level 0, bits: opening"),
            (one_flip_in_four_is_missing, "level 0, bits: opening"),
            (r_is_zero, "level 0, totals: opening"),
            (r_has_a_bit_too_few, "level 0, totals: opening"),
            (r_is_even, "level 0, totals: opening"),
            (two_contestants_have_one_r, "level 0, totals: differences"),
            (s_is_zero, "level 0, wins: opening"),
            (two_contestants_have_one_s, "level 0, wins: differences"),
            (s_is_r, "level 0, totals: opening & level 0, wins: opening"),
        ],
    )
    def test_in_what_is_opened(self, flaw: Flaw, where: str) -> None:
        assert where in noticed(flaw, "all tie")

    @pytest.mark.parametrize(
        ("flaw", "where"),
        [
            (q_is_zero, "level 1, labels: opening"),
            (two_contestants_have_one_q, "level 1, labels: differences"),
        ],
    )
    def test_in_labels_that_go_on_to_the_next_level(self, flaw: Flaw, where: str) -> None:
        assert where in noticed(flaw, "extremes", (2, 2))

    @pytest.mark.parametrize("honest", [0, 1, 2])
    @pytest.mark.parametrize(("flaw", "what"), [(own_r_is_zero, "totals"), (own_s_is_zero, "wins")])
    def test_in_what_is_left_without_ones_own_masks(
        self, flaw: Flaw, what: str, honest: int
    ) -> None:
        """The openings alone look well: the others' masks are in them."""
        found = noticed(flaw, "extremes", honest=honest)
        assert f"level 0, {what}: opening less own masks" in found
        assert f"level 0, {what}: opening" not in found

    @pytest.mark.parametrize("honest", [0, 1])
    @pytest.mark.parametrize(
        ("flaw", "where"),
        [
            (own_tables_are_zero, "level 0, bits: payload"),
            (own_tables_are_zero, "level 0, parts: tables & level 0, parts: tables"),
            (own_tables_repeat, "level 0, parts: tables & level 0, parts: tables"),
            (own_coefficients_are_zero, "level 0, parts: coefficients"),
            (own_choice_is_zero, "level 0, parts: chosen 0"),
            (own_choice_is_zero, "label shares together"),
        ],
    )
    def test_in_what_the_correction_shows(self, flaw: Flaw, where: str, honest: int) -> None:
        assert where in noticed(flaw, "extremes", honest=honest)

    @pytest.mark.parametrize(
        ("flaw", "where"),
        [
            (s_is_zero, "level 0, wins: opening & secrets"),
            (alpha_is_zero, "openings & openings & secrets"),
        ],
    )
    def test_in_what_goes_with_random_totals(self, flaw: Flaw, where: str) -> None:
        assert where in noticed(flaw, "random")

    def test_in_preprocessing_that_is_used_at_two_levels(self) -> None:
        seeds = [new_seed() for _ in range(3)]

        def dealer(level: LevelTables, parties: int) -> list[LevelPart]:
            free = [level.expand(seed, 0, None) for seed in seeds[:-1]]
            return [*free, level.expand(seeds[-1], 0, level.correct(seeds, 0))]

        seen = view(run(shape_of((2, 2), 3), WORLDS["extremes"], dealer), 1)
        assert "level 0, totals: opening & level 1, totals: opening" in suspicions(seen)

    def test_a_view_with_the_last_share_is_told_from_a_simulated_one(self) -> None:
        """With the honest party's masks too, what is left is the totals."""
        seen = real((), 3, "extremes")
        mask = added([parts[0].r for parts in seen.parts], BITS)
        bare = (seen.opened(0)[0] - mask) & np.uint64((1 << BITS) - 1)
        name = "level 0, totals: opening"
        leaky = {**view(seen, 1), name: Seen(by_row(bare), BITS)}
        simulated = view(simulate(shape_of((), 3), 1), 1)
        assert told_apart(leaky, simulated) == {name}


def test_the_worlds_have_different_winners() -> None:
    winners = [WORLDS[world].argmax(axis=1) for world in ("all tie", "extremes")]
    assert (winners[0] != winners[1]).all()
