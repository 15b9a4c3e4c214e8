"""What is charged: never below what is lost, by whom it is seen, and the figures that the docs
state."""

from __future__ import annotations

import itertools
import math
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpc_vote.privacy import (
    Against,
    Budget,
    BudgetExhausted,
    CoinVote,
    Decided,
    GaussianVote,
    Ledger,
    Level,
    Mechanism,
    PoissonGaussian,
    SkellamVote,
    certificates,
    charged_epsilon,
    charging,
    epsilon,
    gaussian_exact_epsilon,
)
from mpc_vote.privacy.certificates import Certificate, check_certificate
from mpc_vote.privacy.charging import LEAST_LABEL_DELTA, included_law, steps
from mpc_vote.privacy.coins import CoinLaw, law_for
from mpc_vote.privacy.gdp import skellam_law
from mpc_vote.privacy.label_steps import Seen
from mpc_vote.privacy.label_table import Entry, includes, label_certificate, read, table, written
from mpc_vote.privacy.ledger import LedgerView
from mpc_vote.privacy.mechanisms import Clipped, mechanism_from_json
from mpc_vote.privacy.sensitivity import Sensitivity
from mpc_vote.voting.ballots import BALLOTS, KNN_COUNT, KNN_FREQUENCY, MULTI_LABEL, ONE_HOT
from mpc_vote.voting.charge import charge, committee_charge
from tests.unit.privacy.exact import (
    FloatArray,
    Profile,
    before,
    coins,
    epsilon_of,
    label_law,
    nothing,
)

SMALL, WIDER = ((1, 16),), ((1, 64),)
ONE, TWO = Sensitivity.of_cells(1, 1), Sensitivity.of_cells(2, 1)
DELTA = 1e-3


def small_vote(queries: int, levels: tuple[tuple[int, int], ...] = SMALL) -> CoinVote:
    return CoinVote(queries, levels, 1, ONE, TWO, Decided.ARGMAX)


def skellam(kind: str, queries: int, sigma: float, ks: tuple[int, ...] = ()) -> SkellamVote:
    ballot = next(one for one in BALLOTS if one.name == kind)
    bits = ballot.default_fraction_bits(ks)
    variance = (sigma * 2**bits) ** 2
    return charge(ballot, queries=queries, variance=variance, fraction_bits=bits, ks=ks)


@pytest.mark.parametrize(
    ("vote", "agent", "instance"),
    [
        (skellam("one_hot", 500, 25), 2.74, 4.22),
        (skellam("one_hot", 500, 30), 2.20, 3.36),
        (skellam("knn_count", 500, 40, (50,)), 476.2, 2.36),
        (committee_charge(ONE_HOT, queries=500, sigma=25), 2.75, 4.23),
        (committee_charge(ONE_HOT, queries=500, sigma=30), 2.21, 3.37),
        (committee_charge(KNN_COUNT, queries=500, sigma=40, ks=[50]), 491.0, 2.36),
    ],
)
def test_five_hundred_queries_cost_by_the_totals_what_the_docs_say(
    vote: Mechanism, agent: float, instance: float
) -> None:
    for level, expected in ((Level.AGENT, agent), (Level.INSTANCE, instance)):
        found = charged_epsilon([vote], level, DELTA)
        assert 0.99 * expected < found <= expected
        assert found < epsilon([vote], level, DELTA)


@pytest.mark.parametrize(
    ("vote", "agent", "instance"),
    [
        (committee_charge(ONE_HOT, queries=500, sigma=25), 2.10, 3.26),
        (committee_charge(ONE_HOT, queries=500, sigma=30), 1.68, 2.60),
        (committee_charge(KNN_COUNT, queries=500, sigma=40, ks=[50]), None, 1.84),
        (committee_charge(MULTI_LABEL, queries=500, sigma=50, tau=4), 2.10, 3.20),
        (skellam("one_hot", 500, 25), 2.11, None),
        (skellam("knn_frequency", 500, 25, (50,)), None, None),
    ],
)
def test_labels_cost_what_the_docs_say_or_as_much_as_totals(
    vote: Mechanism, agent: float | None, instance: float | None
) -> None:
    for level, expected in ((Level.AGENT, agent), (Level.INSTANCE, instance)):
        found = charged_epsilon([vote], level, DELTA, Against.LABELS)
        totals = charged_epsilon([vote], level, DELTA)
        if expected is None:
            assert found == totals
        else:
            assert 0.98 * expected < found <= expected < 0.83 * totals


# Never below the truth


def versions(level: Level, law: FloatArray, classes: int) -> tuple[FloatArray, FloatArray]:
    """The laws of labels of all small histograms and their neighbours, both ways."""
    ps, qs = [], []
    order = range(classes)
    for lead in itertools.product(range(-4, 5, 2), repeat=classes - 1):
        here = (*lead, 0)
        for one, two in itertools.permutations(range(classes), 2):
            there = list(here)
            there[one] += 1
            if level is Level.INSTANCE:
                there[two] -= 1
            ps.append(label_law(here, law, order))
            qs.append(label_law(there, law, order))
    p, q = np.array(ps), np.array(qs)
    return np.concatenate([p, q]), np.concatenate([q, p])


@pytest.mark.parametrize("delta", [1e-2, 1e-4])
@pytest.mark.parametrize("level", Level)
def test_a_ledger_says_no_less_than_the_worst_adversary_finds(
    level: Level, delta: float, tmp_path: Path
) -> None:
    """Two classes, up to three queries, each chosen by the labels so far."""
    levels = ((1, 64),)
    shown: Profile = nothing
    pairs = versions(level, coins(*levels), 2)
    with Ledger(tmp_path / "ledger.db", Budget(None, None, delta, Against.LABELS)) as ledger:
        for number in range(1, 4):
            shown = before(*pairs, shown)
            ledger.charge(f"r{number}", small_vote(1, levels))
            found = epsilon_of(shown, delta)
            labels = ledger.spent(level, delta)
            assert found <= labels <= ledger.spent(level, delta, against=Against.TOTALS)
            assert labels < 4 * found + 0.2, "it is an account, not just any number"


def totals_profile(law: FloatArray, cells: int) -> tuple[FloatArray, FloatArray]:
    """All totals of one query, as they are seen."""
    still, moved = np.append(law, 0.0), np.insert(law, 0, 0.0)
    p, q = still, moved
    for _ in range(cells - 1):
        p, q = np.outer(p, moved).ravel(), np.outer(q, still).ravel()
    return np.stack([p, q]), np.stack([q, p])


Plant = Callable[[pytest.MonkeyPatch], None]


def one_cell_of_two(patch: pytest.MonkeyPatch) -> None:
    real = charging._coin_steps

    def planted(vote: CoinVote, level: Level) -> charging.Run | None:
        found = real(vote, level)
        return None if found is None else (found[0], vote.queries)

    patch.setattr(charging, "_coin_steps", planted)


def cheapest_for_all(patch: pytest.MonkeyPatch) -> None:
    real = charging._coins

    def planted(law: CoinLaw, move: int) -> Certificate | None:
        found = real(law, move)
        return found and Certificate((0.0,), found.costs[-1:], found.slack)

    patch.setattr(charging, "_coins", planted)


def more_coins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(charging, "included_law", lambda law: CoinLaw(((1, 100),)))


def test_totals_are_charged_no_less_than_they_show() -> None:
    shown = before(*totals_profile(coins(*WIDER), 2), nothing)
    for delta in (1e-2, 1e-3, 2e-4):
        found = epsilon_of(shown, delta)
        assert found <= charged_epsilon([small_vote(1, WIDER)], Level.INSTANCE, delta) < 2 * found


@pytest.mark.parametrize("plant", [one_cell_of_two, cheapest_for_all, more_coins])
def test_planted_errors_in_what_is_charged_are_seen(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    shown = before(*totals_profile(coins(*WIDER), 2), nothing)
    assert any(
        epsilon_of(shown, delta) > charged_epsilon([small_vote(1, WIDER)], Level.INSTANCE, delta)
        for delta in (1e-2, 1e-3, 2e-4)
    )


def test_the_edge_of_a_law_is_seen_and_charged() -> None:
    """With 16 coins a move shows with a probability of 2^-16: no epsilon covers it below."""
    assert charged_epsilon([small_vote(1)], Level.AGENT, 1e-6) == math.inf
    assert charged_epsilon([small_vote(1, ((1, 64),))], Level.AGENT, 1e-6) < math.inf


# Which label is charged how


def test_what_a_vote_decides_is_known_or_it_is_charged_as_totals() -> None:
    vote = committee_charge(ONE_HOT, queries=100, sigma=25)
    unknown = replace(vote, decided=Decided.UNKNOWN)
    old = mechanism_from_json(unknown.to_json().replace('"decided": "", ', ""))
    assert old == unknown
    for level in Level:
        totals = charged_epsilon([vote], level, DELTA)
        assert charged_epsilon([old], level, DELTA, Against.LABELS) == totals
        assert charged_epsilon([vote], level, DELTA, Against.LABELS) < totals


def test_cells_that_decide_for_themselves_are_thresholds_each() -> None:
    vote = committee_charge(MULTI_LABEL, queries=10, sigma=50, tau=2)
    for level, cells in ((Level.AGENT, 2), (Level.INSTANCE, 4)):
        found = steps(vote, level, Against.LABELS)
        single = label_certificate(Seen.THRESHOLD, vote.law, 1)
        assert found == (single, 10 * cells)


def test_two_cells_that_decide_one_label_are_a_flip() -> None:
    vote = committee_charge(ONE_HOT, queries=10, sigma=25)
    assert steps(vote, Level.INSTANCE, Against.LABELS) == (
        label_certificate(Seen.FLIP, vote.law, 1),
        10,
    )


def test_with_a_tiny_delta_labels_are_charged_as_totals() -> None:
    vote = committee_charge(ONE_HOT, queries=100, sigma=25)
    assert charged_epsilon([vote], Level.AGENT, LEAST_LABEL_DELTA, Against.LABELS) < (
        charged_epsilon([vote], Level.AGENT, LEAST_LABEL_DELTA)
    )
    smaller = LEAST_LABEL_DELTA / 2
    assert charged_epsilon([vote], Level.AGENT, smaller, Against.LABELS) == (
        charged_epsilon([vote], Level.AGENT, smaller)
    )


def test_what_has_no_certificate_has_no_finite_epsilon() -> None:
    sampled = PoissonGaussian(10, 0.1, 1.0, Clipped(1, False), Clipped(1, False))
    assert charged_epsilon([sampled], Level.AGENT, DELTA) == math.inf
    far = committee_charge(KNN_COUNT, queries=1, sigma=4, ks=[100])
    assert charged_epsilon([far], Level.AGENT, DELTA) == math.inf
    assert charged_epsilon([far], Level.INSTANCE, DELTA) < 2


def test_gaussian_noise_is_charged_exactly_but_for_what_slack_is_set_aside() -> None:
    vote = GaussianVote(500, 625.0, ONE, TWO)
    exact = gaussian_exact_epsilon(math.sqrt(500 / 625), DELTA)
    assert exact < charged_epsilon([vote], Level.AGENT, DELTA) < 1.002 * exact


@pytest.mark.parametrize("votes", [2, 5])
def test_votes_in_any_spread_cost_no_less_than_each_composition(votes: int) -> None:
    """At the price of many, of every way to spread them over cells."""
    law = law_for(40)
    spread = charging._spread(law, 1, votes)
    assert spread is not None
    rest = 100 * spread.floors[-1]
    for parts in ((votes,), (1,) * votes, (votes - 1, 1)):
        b = rest
        for part in parts:
            certificate = charging._coins(law, part)
            assert certificate is not None
            b = certificate.needed(b, 1)
        assert spread.needed(rest, 1) > b * (1 - 1e-3 * (b - rest) / rest)
    assert spread.costs[-1] < 1.02 * votes**2 / 1600


# Laws that stand for others


@settings(max_examples=60, deadline=None)
@given(st.floats(0.3, 4000))
def test_the_law_that_is_charged_is_part_of_the_law(sigma: float) -> None:
    law = law_for(sigma)
    charged = included_law(law)
    assert includes(law, charged)
    assert float(charged.variance) > 0.96 * float(law.variance)
    assert included_law(charged) == charged


def test_few_laws_are_ever_certified() -> None:
    sigmas = np.geomspace(4, 16, 2000)
    asked = {law_for(sigma) for sigma in sigmas}
    certified = {included_law(law) for law in asked}
    assert len(certified) < len(asked) / 2


@pytest.mark.parametrize("sigma", [11.3, 23.7, 300.0])
def test_part_of_the_noise_costs_a_little_more(sigma: float) -> None:
    law = law_for(sigma)
    part = charging._coins(included_law(law), 1)
    whole = charging._coins.__wrapped__(law, 1)
    assert part is not None and whole is not None
    assert all(
        part.needed(rest / sigma**2, 1) >= whole.needed(rest / sigma**2, 1) for rest in (0, 5, 90)
    )


def test_of_the_table_only_what_is_included_is_taken() -> None:
    coin_law = law_for(25)
    assert label_certificate(Seen.FLIP, coin_law, 1) is not None
    assert label_certificate(Seen.FLIP, coin_law, 2) is None
    assert label_certificate(Seen.FLIP, CoinLaw(((6, 60),)), 1) is None
    low, high = (label_certificate(Seen.THRESHOLD, v * 256.0, 16) for v in (625.0, 640.0))
    assert low is not None and low == high
    assert label_certificate(Seen.THRESHOLD, 1.0, 16) is None
    assert not includes(624.9, 625.0) and not includes(coin_law, 625.0)


def test_the_table_is_read_as_it_was_written() -> None:
    assert read(written(table())) == table()


def _id(entry: Entry) -> str:
    noise = entry.noise
    return f"{entry.seen}-{noise.levels if isinstance(noise, CoinLaw) else noise}-{entry.move}"


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(entry, id=_id(entry), marks=[] if quick else [pytest.mark.slow])
        for entry, quick in (
            (one, one.seen is Seen.THRESHOLD and one.noise in (law_for(25), law_for(8)))
            for one in table()
        )
    ],
)
def test_certificates_in_the_table_hold_and_lower_ones_do_not(entry: Entry) -> None:
    given = entry.certificate
    assert check_certificate(given, entry.seen, entry.law, entry.move)
    lower = replace(given, costs=tuple(cost * 0.998 for cost in given.costs))
    assert not check_certificate(lower, entry.seen, entry.law, entry.move)


# In a ledger


def old_ledger(path: Path) -> Path:
    dump = Path(__file__).with_name("ledger_schema_3.sql").read_text()
    with sqlite3.connect(path) as db:
        db.executescript(dump)
    db.close()
    return path


@pytest.mark.parametrize("against", Against)
def test_a_ledger_of_the_rényi_account_is_taken_along_whole(
    against: Against, tmp_path: Path
) -> None:
    path = old_ledger(tmp_path / "ledger.db")
    with LedgerView(path) as view:
        before_spends, known = view.spends(), view.ledger_id
        assert view.budget == Budget(None, 8.0, 1e-3, Against.TOTALS)
        read_only = view.spent(Level.INSTANCE, 1e-3)
    assert len(before_spends) == 4
    with Ledger(path, Budget(None, 8.0, 1e-3, against), "agent/alice") as ledger:
        assert ledger.spends() == before_spends and ledger.ledger_id == known
        for level in Level:
            replayed = charged_epsilon([s.mechanism for s in before_spends], level, 1e-3)
            assert ledger.spent(level, 1e-3) == replayed
            gaussian = math.sqrt(
                sum(
                    s.mechanism.queries
                    * s.mechanism.sensitivity(level).l2_squared
                    / s.mechanism.variance
                    for s in before_spends
                    if isinstance(s.mechanism, SkellamVote | CoinVote)
                )
            )
            assert replayed > gaussian_exact_epsilon(gaussian, 1e-3)
        assert ledger.spent(Level.INSTANCE, 1e-3) == read_only
        ledger.charge("round-5", committee_charge(ONE_HOT, queries=10, sigma=25))
    with LedgerView(path) as view:
        assert len(view.spends()) == 5 and view.budget is not None
        assert view.budget.against is against


def test_an_old_ledger_has_more_left_by_the_new_account(tmp_path: Path) -> None:
    vote = committee_charge(ONE_HOT, queries=1, sigma=25)
    with Ledger(tmp_path / "ledger.db", Budget(None, 4.0, 1e-3)) as ledger:
        fits = ledger.affordable(vote)
    assert fits is not None
    by_renyi = next(
        n
        for n in range(fits, 0, -1)
        if epsilon([replace(vote, queries=n)], Level.INSTANCE, 1e-3) <= 4.0
    )
    assert 1.18 < fits / by_renyi < 1.3


VOTES: list[Mechanism] = [
    committee_charge(ONE_HOT, queries=10, sigma=8),
    committee_charge(ONE_HOT, queries=70, sigma=20),
    skellam("one_hot", 20, 12),
    committee_charge(MULTI_LABEL, queries=6, sigma=10, tau=2),
]


@pytest.mark.parametrize("against", Against)
def test_what_was_promised_is_charged_in_whatever_order(against: Against, tmp_path: Path) -> None:
    promised: dict[str, Mechanism] = {}
    budget = Budget(None, 6.0, 1e-3, against)
    with Ledger(tmp_path / "ledger.db", budget) as ledger:
        for number, vote in enumerate(itertools.cycle(VOTES)):
            try:
                ledger.check(f"r{number}", vote, promised)
            except BudgetExhausted:
                break
            promised[f"r{number}"] = vote
    assert len(promised) > 4
    for turn, order in enumerate((list(promised), list(promised)[::-1], sorted(promised)[::-1])):
        with Ledger(tmp_path / f"ledger-{turn}.db", budget) as ledger:
            for name in order:
                ledger.charge(name, promised[name])
            assert ledger.spent(Level.INSTANCE, 1e-3) <= 6.0


def test_a_ledger_held_against_labels_allows_more_and_says_so(tmp_path: Path) -> None:
    vote = committee_charge(ONE_HOT, queries=1, sigma=25)
    fits = {}
    for against in Against:
        with Ledger(tmp_path / f"{against}.db", Budget(None, 4.0, 1e-3, against)) as ledger:
            fits[against] = ledger.affordable(vote)
            with pytest.raises(BudgetExhausted) as caught:
                ledger.charge("r", replace(vote, queries=10**4))
            assert caught.value.against is against
            assert caught.value.figures["against"] == against.value
    totals, labels = fits[Against.TOTALS], fits[Against.LABELS]
    assert totals is not None and labels is not None and labels > 1.4 * totals


def test_a_ledger_that_changes_whom_it_is_held_against_replays_all_of_it(tmp_path: Path) -> None:
    path, vote = tmp_path / "ledger.db", committee_charge(ONE_HOT, queries=300, sigma=25)
    with Ledger(path, Budget(None, 3.0, 1e-3, Against.LABELS)) as ledger:
        ledger.charge("r1", vote)
        left = ledger.affordable(replace(vote, queries=1))
    assert left
    with Ledger(path, Budget(None, 3.0, 1e-3, Against.TOTALS)) as ledger:
        assert ledger.affordable(replace(vote, queries=1)) == 0
    with Ledger(path, Budget(None, 3.0, 1e-3, Against.LABELS)) as ledger:
        assert ledger.affordable(replace(vote, queries=1)) == left


def test_nobody_waits_for_a_certificate_while_the_ledger_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made before: whoever else writes to the file is not held up by it."""
    made: list[bool] = []
    with Ledger(tmp_path / "ledger.db", Budget(None, 1.0, 1e-3)) as ledger:
        real = certificates.certify

        def watched(*asked: object) -> Certificate:
            made.append(ledger._db.in_transaction)
            return real(*asked)  # type: ignore[arg-type]

        monkeypatch.setattr(charging, "certify", watched)
        ledger.charge("r1", committee_charge(ONE_HOT, queries=1, sigma=17.31))
        with pytest.raises(BudgetExhausted):
            ledger.charge("r2", committee_charge(ONE_HOT, queries=900, sigma=17.13))
    assert made and not any(made)


def test_a_ledger_with_a_noise_of_its_own_for_every_spend_checks_by_a_few_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was spent long ago is a sum: a check does not go through it again."""
    asked: list[Certificate] = []
    real = Certificate.needed

    def counted(self: Certificate, rest: float, number: int) -> float:
        asked.append(self)
        return real(self, rest, number)

    with Ledger(tmp_path / "ledger.db", Budget(None, 8.0, 1e-3)) as ledger:
        for number in range(100):
            ledger.charge(f"r{number}", skellam("one_hot", 1, 40 + number))
        monkeypatch.setattr(Certificate, "needed", counted)
        ledger.check("next", skellam("one_hot", 1, 700))
    assert len(asked) < 20


def test_a_law_of_much_noise_takes_no_more_work() -> None:
    """Skellam noise of any variance has a mu, made from some thousand places."""
    assert skellam_law(1.0).sum() == pytest.approx(1)
    fine = skellam("knn_frequency", 500, 25, (50,))
    assert charged_epsilon([fine], Level.INSTANCE, 1e-5) < epsilon([fine], Level.INSTANCE, 1e-5)
    assert KNN_FREQUENCY.decided is Decided.UNKNOWN


@pytest.mark.parametrize(("k", "sigma"), [(15, 12.0), (15, 15.0), (20, 10.0), (50, 40.0)])
def test_counts_at_agent_level_have_a_figure_at_usual_noise(k: int, sigma: float) -> None:
    """A move far into the edge of a law has no certificate with the least slack."""
    vote = committee_charge(KNN_COUNT, queries=150, sigma=sigma, ks=(k,))
    told = charged_epsilon([vote], Level.AGENT, 1e-5)
    assert told < 1.2 * epsilon([vote], Level.AGENT, 1e-5)
