"""Agents that lie about their votes, against the live service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest

from agent_node.agent import Agent
from mpc_vote.client import AsyncLabelClient, LabelResult, Plan
from mpc_vote.data.dataset import Dataset
from mpc_vote.errors import ErrorKind
from mpc_vote.mpc.sharing import Share, split
from mpc_vote.verified.encoding import split_bits
from mpc_vote.voting.ballots import (
    KNN_COUNT,
    KNN_FREQUENCY,
    MULTI_LABEL,
    ONE_HOT,
    BallotKind,
    IntArray,
)
from mpc_vote.voting.spec import Spec
from tests.system.service.support import Service, attends, join, refused, until

CLASSES, QUERIES, HONEST = 5, 40, 3
# Of the committee's noise: half a vote is five standard deviations.
SIGMA = 0.1


class _Stuffer(Agent):
    """Shares more votes for the last class than all honest agents have; or where it can't, all of
    its votes, or yes to every attribute."""

    def _share(self, spec: Spec, ballot: IntArray) -> list[Share]:
        parties, explicit = len(spec.parties), spec.explicit_rank(self._name)
        if spec.message.verified:
            layout = spec.layout(self._name)
            bits = np.ones((len(ballot), layout.bits), dtype=np.uint8)
            last = (CLASSES - 1) >> np.arange(layout.pointer_bits) & 1
            bits[:, : layout.bits - layout.flags] = np.tile(last, layout.pointers)
            return split_bits(bits, parties, explicit)
        stuffed = np.zeros_like(ballot)
        stuffed[:, -1] = (HONEST + 1) << spec.message.fraction_bits
        return split(stuffed, parties, explicit, spec.message.ring_bits)


def _points(label: Sequence[int]) -> Dataset:
    """Whatever is asked, the answer is the label; attributes where there are several."""
    y = np.array([label] * 4 if len(label) > 1 else list(label) * 4)
    x = np.random.default_rng(len(label)).normal(size=(4, 7)).astype(np.float32)
    return Dataset("all alike", x, y, CLASSES)


@contextlib.asynccontextmanager
async def _agents(
    service: Service, prefix: str, label: Sequence[int], liars: int, voter: str = "knn"
) -> AsyncIterator[AsyncLabelClient]:
    """Honest agents that all say the same, and liars; a client."""
    async with contextlib.AsyncExitStack() as stack:
        names = [f"{prefix}-{number}" for number in range(HONEST + liars)]
        for number, name in enumerate(names):
            kind = Agent if number < HONEST else _Stuffer
            flags = (f"--voter={voter}", "--k=1")
            await join(stack, service, name, _points(label), kind, *flags)
        client = await stack.enter_async_context(service.client())
        await until(lambda: attends(client, *names), "all attend")
        yield client


async def _label(client: AsyncLabelClient, **more: Any) -> LabelResult:
    queries = np.zeros((QUERIES, 7), dtype=np.float32)
    plan = Plan(classes=CLASSES, sigma=SIGMA, collusion=0, **more)
    return await client.label(queries, plan)


@pytest.mark.parametrize("verified", [True, False])
async def test_votes_for_one_class_can_be_stuffed_only_where_they_are_not_verified(
    service: Service, verified: bool
) -> None:
    """Whatever bits come, they are one vote."""
    async with _agents(service, f"model-{verified}".lower(), [2], 1, "network") as client:
        result = await _label(client, ballot=ONE_HOT, verified=verified)
    assert result.contributors == HONEST + 1
    assert set(result.labels.tolist()) == ({2} if verified else {CLASSES - 1})


@pytest.mark.parametrize("verified", [True, False])
async def test_counts_can_be_stuffed_only_where_they_are_not_verified(
    service: Service, verified: bool
) -> None:
    """Whatever bits come, they are as many votes as the agent has neighbours: it is counted."""
    async with _agents(service, f"voter-{verified}".lower(), [2], 1) as client:
        result = await _label(client, ballot=KNN_COUNT, verified=verified, quorum=HONEST)
    assert set(result.labels.tolist()) == ({2} if verified else {CLASSES - 1})
    assert result.contributors == HONEST + 1 and not result.absences


@pytest.mark.parametrize("liars", [HONEST - 1, HONEST + 1])
async def test_who_says_yes_to_everything_has_one_vote_for_each_attribute(
    service: Service, liars: int
) -> None:
    """More than the tau of an honest agent, and no more: it takes a majority of liars."""
    said = [1, 0, 0, 1, 0]
    async with _agents(service, f"face-{liars}", said, liars) as client:
        result = await _label(client, ballot=MULTI_LABEL, tau=2, verified=True)
    expected = [1] * CLASSES if liars > HONEST else said
    assert result.labels.tolist() == [expected] * QUERIES
    assert result.contributors == HONEST + liars and not result.absences


@pytest.mark.parametrize("ballot", [KNN_COUNT, MULTI_LABEL])
async def test_ballots_are_verified_unless_somebody_says_no(
    service: Service, ballot: BallotKind
) -> None:
    prefix, said = ballot.name.replace("_", "-"), [1, 0, 0, 1, 0]
    several = ballot is MULTI_LABEL
    async with _agents(service, prefix, said if several else [1], 0) as client:
        plan = {"ballot": ballot, "tau": 2 if several else None}
        asked = {None: True, True: True, False: False}
        for verified, expected in asked.items():
            result = await _label(client, **plan, verified=verified)
            assert result.spec is not None and result.spec.verified == expected


async def test_frequency_ballots_can_not_be_verified(
    service: Service,
) -> None:
    async with _agents(service, "share", [1], 0) as client:
        result = await _label(client, ballot=KNN_FREQUENCY)
        assert set(result.labels.tolist()) == {1}
        assert result.spec is not None and not result.spec.verified
        with refused(ErrorKind.SPEC_INVALID, "use knn_count ballots"):
            await _label(client, ballot=KNN_FREQUENCY, verified=True)
