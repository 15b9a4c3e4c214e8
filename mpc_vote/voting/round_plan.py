"""What a dry run says: a round as it would be, its cost, and how good its labels would be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mpc_vote.proto.mpcvote.v1 import label_pb2
from mpc_vote.voting.ballots import BallotKind
from mpc_vote.voting.forecast import Forecast, Poll, forecast
from mpc_vote.voting.spec import Spec


@dataclass(frozen=True)
class RoundPlan:
    """A round that nobody has opened: `agents` would be asked, each with its public k, and
    `left_out` attend and would not be, each with the reason.

    What agents have left to spend is known to them alone: some of those who are asked may decline.
    `over_budget` says why the service's own budget forbids the round; it is empty otherwise.
    """

    task: str
    ballot: BallotKind
    classes: int
    tau: int
    queries: int
    sigma: float
    agents: Mapping[str, int]
    left_out: Mapping[str, str]
    quorum: int
    collusion: int
    verified: bool
    engine: str
    ring_bits: int
    parties: tuple[str, ...]
    unready_parties: tuple[str, ...]
    epsilon_agent: float
    epsilon_instance: float
    total_epsilon_agent: float
    total_epsilon_instance: float
    labels_epsilon_agent: float
    labels_epsilon_instance: float
    total_labels_epsilon_agent: float
    total_labels_epsilon_instance: float
    delta: float
    over_budget: str
    warnings: tuple[str, ...]

    @classmethod
    def from_message(cls, message: label_pb2.PlanRoundResponse) -> RoundPlan:
        """From the wire; a `VoteError` for a spec that doesn't hold together."""
        spec, cost = Spec.seal(message.spec), message.cost
        m = spec.message
        return cls(
            task=m.task,
            ballot=spec.ballot,
            classes=m.classes,
            tau=m.tau,
            queries=m.queries,
            sigma=m.sigma,
            agents=spec.roster,
            left_out={one.agent: one.reason for one in message.left_out},
            quorum=m.quorum,
            collusion=m.collusion,
            verified=m.verified,
            engine=spec.engine_kind.name,
            ring_bits=m.ring_bits,
            parties=spec.parties,
            unready_parties=tuple(message.unready_parties),
            epsilon_agent=cost.epsilon_agent,
            epsilon_instance=cost.epsilon_instance,
            total_epsilon_agent=cost.total_epsilon_agent,
            total_epsilon_instance=cost.total_epsilon_instance,
            labels_epsilon_agent=cost.labels_epsilon_agent,
            labels_epsilon_instance=cost.labels_epsilon_instance,
            total_labels_epsilon_agent=cost.total_labels_epsilon_agent,
            total_labels_epsilon_instance=cost.total_labels_epsilon_instance,
            delta=cost.delta,
            over_budget=message.over_budget,
            warnings=tuple(message.warnings),
        )

    @property
    def votes(self) -> int:
        """On a query, at most."""
        return self.ballot.votes(list(self.agents.values()))

    def forecast(
        self, agreement: float, *, turnout: float = 1.0, participation: float = 1.0
    ) -> Forecast:
        """The expected share of right labels.

        `agreement` is the part of the votes that name the right class, `turnout` the part of the
        votes that are cast, `participation` the part of the agents that answer.
        """
        poll = Poll.of(
            self.ballot,
            self.classes,
            list(self.agents.values()),
            sigma=self.sigma,
            quorum=self.quorum,
            collusion=self.collusion,
            verified=self.verified,
            participation=participation,
        )
        return forecast(poll, agreement, turnout)
