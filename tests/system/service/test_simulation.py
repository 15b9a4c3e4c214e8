"""The same small experiment through the simulation and through the live service."""

from __future__ import annotations

import contextlib

import numpy as np

from agent_node.agent import Agent
from mpc_vote.client import Plan
from mpc_vote.data.embedded import load_embedded
from mpc_vote.data.partition import split_skewed
from mpc_vote.privacy.noise import SkellamSampler
from mpc_vote.simulation.vote import seeded, simulated_spec, vote
from mpc_vote.voting.ballots import KNN_COUNT, ONE_HOT, IntArray
from mpc_vote.voting.spec import Spec
from tests.system.service.support import Service, attends, join, until

AGENTS, QUERIES, SIGMA, SEED = 6, 80, 6.0, 11


class _Seeded(Agent):
    """An agent whose noise can be repeated."""

    def _noise(self, spec: Spec) -> IntArray:
        shape = (spec.message.queries, spec.message.classes)
        return SkellamSampler(spec.agent_variance).sample(shape, seeded(SEED, self._name))


async def test_simulation_and_service_give_the_same_labels(service: Service) -> None:
    parts = split_skewed(load_embedded(), AGENTS, QUERIES, 500, 0, 4)
    flags = {
        "knn": ("--voter=knn", "--features=strokes", "--k=4"),
        "ae": ("--voter=network",),
    }
    kinds = {"knn": KNN_COUNT, "ae": ONE_HOT}
    for method, kind in kinds.items():
        async with contextlib.AsyncExitStack() as stack:
            voters = {}
            for number, part in enumerate(parts.private):
                name = f"{method}-{number}"
                own = part.take(np.arange(120))
                voters[name] = await join(stack, service, name, own, _Seeded, *flags[method])
            client = await stack.enter_async_context(service.client())
            await until(lambda: attends(client, *voters), "all attend")  # noqa: B023
            plan = Plan(
                classes=10,
                sigma=SIGMA,
                ballot=kind,
                quorum=AGENTS,
                collusion=1,
                agreement=None,
                verified=False,
            )
            result = await client.label(parts.public.x, plan)
        roster = {name: voter.k for name, voter in voters.items()}
        spec = simulated_spec(kind, QUERIES, 10, roster, SIGMA, quorum=AGENTS, collusion=1)
        cast = {
            name: spec.encode(name, voter.vote(parts.public.x, kind))
            for name, voter in voters.items()
        }
        simulated = vote(spec, cast, SEED)[:, 0]
        assert result.contributors == AGENTS
        assert np.array_equal(result.labels, simulated)
        plain = np.argmax(sum(cast.values()), axis=1)
        assert np.mean(simulated == plain) < 1  # the noise had a say
