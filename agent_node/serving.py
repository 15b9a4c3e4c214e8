"""What an agent answers: rounds of tasks, and rounds without one, each with a voter of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.learning.voters import Voter
from mpc_vote.learning.voters.isolated import IsolatedVoter
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.tasks import Task, agreement
from mpc_vote.voting.spec import Spec


@dataclass(frozen=True)
class Serving:
    """One of the things that an agent answers."""

    offer: common_pb2.Offer
    voter: Voter
    voter_name: str
    task: Task | None = None


class Servings:
    """All that an agent answers, by the task that a spec names."""

    def __init__(self, agent: str, servings: Iterable[Serving]) -> None:
        self._agent = agent
        self._by_name = {one.offer.task: one for one in servings}

    def close(self) -> None:
        """Ends the processes of voters; a vote that one is asked for fails at once."""
        for one in self._by_name.values():
            if isinstance(one.voter, IsolatedVoter):
                one.voter.close()

    def task(self, name: str) -> Task | None:
        """The agent's task of this name."""
        found = self._by_name.get(name)
        return None if found is None else found.task

    def find(self, spec: Spec) -> Serving:
        """What answers a spec; one of another task, or of another version of it, is refused."""
        found = self._by_name.get(spec.task)
        if found is None:
            tasks = [name for name in self._by_name if name]
            if spec.task:
                raise agreement.unknown(f"Agent {self._agent}", spec.task, tasks)
            why = f"it has no task, and this agent answers {', '.join(tasks)} only"
            raise VoteError(ErrorKind.POLICY_REFUSED, why=why)
        mine, its = found.offer.task_digest, spec.message.task_digest
        if mine != its:
            raise agreement.digests_differ(
                spec.task, f"agent {self._agent}", mine, "the round", its
            )
        return found
