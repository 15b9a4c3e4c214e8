"""The joint view of any P-1 parties is the same whatever the ballots are.

Two worlds differ in every ballot, in the totals and in all labels. Noise is left out: what the
parties see must not depend on what was shared, so there is nothing that could blur a leak. Leaky
variants show that a difference would be noticed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from mpc_vote.argmax.crypten.engine import CryptenArgmax, MaxMethod
from mpc_vote.mpc import ring
from mpc_vote.mpc.prg import SEED_BYTES, SeedStream, new_seed
from mpc_vote.mpc.sharing import Share, expand
from tests.security.observation.coalition import Committee, Profile, differences

pytestmark = pytest.mark.slow

PARTIES, AGENTS, ROWS = 3, 3, 4
RUNS = 28
# Enough where a leak is the same bytes in every run.
LEAKY_RUNS = 12
FALSE_ALARM = 1e-6

# Ballots of three agents on one query, in units; every query of a world is alike.
LEFT = [[480, 16, 0], [320, 160, 32], [400, 0, 96]]
RIGHT = [[0, 48, 464], [-77, 112, 512], [16, 16, 368]]

FAST = CryptenArgmax(MaxMethod.PAIRWISE)


def world(rows: list[list[int]]) -> list[npt.NDArray[np.int64]]:
    return [np.tile(np.array(row, dtype=np.int64), (ROWS, 1)) for row in rows]


def profile(committee: Committee, rows: list[list[int]], runs: int) -> Profile:
    ballots = world(rows)
    wanted = np.sum(ballots, axis=0).argmax(axis=1)
    result = Profile()
    for _ in range(runs):
        view, labels = committee.run(ballots)
        assert np.array_equal(labels, wanted)
        result.add(view)
    return result


def told_apart(committee: Committee, runs: int) -> set[str]:
    left, right = profile(committee, LEFT, runs), profile(committee, RIGHT, runs)
    return differences(left, right, FALSE_ALARM)


def test_two_worlds_look_the_same_to_any_coalition() -> None:
    """False alarms: below 1e-6 for all three coalitions, all strings and all bits together."""
    committee = Committee(PARTIES, CryptenArgmax(MaxMethod.LOG_REDUCTION))
    assert told_apart(committee, RUNS) == set()


def test_a_residual_under_a_mask_used_before_is_noticed() -> None:
    def careless(
        values: npt.NDArray[np.int64], parties: int, explicit: int, bits: int
    ) -> list[Share]:
        seeds = [bytes([rank]) * SEED_BYTES for rank in range(parties)]
        masks = [expand(SeedStream(seed), values.size, bits) for seed in seeds]
        masks.pop(explicit)
        residual = values.reshape(-1).view(np.uint64) - np.sum(masks, axis=0, dtype=np.uint64)
        return [
            Share(packed=ring.pack(residual, bits)) if rank == explicit else Share(seed=seed)
            for rank, seed in enumerate(seeds)
        ]

    names = told_apart(Committee(PARTIES, FAST, split=careless), LEAKY_RUNS)
    # The agent's residual goes to the party of its own number: whoever pools with it sees it.
    for agent in range(AGENTS):
        for honest in range(PARTIES):
            noticed = f"all but party {honest}: shares of agent {agent}" in names
            assert noticed == (honest != agent)


@pytest.mark.parametrize("honest", [0, PARTIES - 1])
def test_a_dealer_whose_seed_for_one_party_is_known_is_noticed(honest: int) -> None:
    """Each string by itself is uniform then; only pooling what is held and opened tells."""

    def dealer_seed(rank: int) -> bytes:
        return bytes(SEED_BYTES) if rank == honest else new_seed()

    names = told_apart(Committee(PARTIES, FAST, dealer_seed=dealer_seed), RUNS)
    start = f"all but party {honest}: openings less own masks"
    # Which class beats which is then in certain bits of every run: as many runs tell as are made
    # above, and fewer would not.
    assert f"{start}, bit" in names
    assert all(name.startswith(start) for name in names)


def test_labels_opened_among_the_parties_are_noticed() -> None:
    names = told_apart(Committee(PARTIES, FAST, opens_labels=True), LEAKY_RUNS)
    assert "openings, no item" in names
    assert "frames, no item" not in names


def test_worlds_have_different_labels_everywhere() -> None:
    left, right = (np.sum(world(rows), axis=0).argmax(axis=1) for rows in (LEFT, RIGHT))
    assert (left != right).all()


def test_single_bits_are_judged_by_fishers_test() -> None:
    one, other = Profile(), Profile()
    for run in range(RUNS):
        one.add({"it": bytes([0b100 | (run % 2)])})
        other.add({"it": bytes([0b010 | (run % 2)])})
    table = [[RUNS, 0], [0, RUNS]]
    p_value = stats.fisher_exact(table).pvalue
    # Eight bits share half of the probability of a false alarm; bytes alone do not tell as much.
    assert differences(one, other, 17 * p_value) == {"it"}
    assert differences(one, other, 15 * p_value) == set()
