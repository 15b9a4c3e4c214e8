"""What an agent refuses, whatever the server says: it trusts its own settings, not the
coordinator's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from agent_node.serving import Serving
from agent_node.settings import AgentSettings, Rounds
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy.ledger import AlreadyCharged, BudgetExhausted, Ledger
from mpc_vote.privacy.mechanisms import Mechanism
from mpc_vote.proto.mpcvote.v1 import agent_pb2, common_pb2
from mpc_vote.voting.spec import Spec

_ROUNDS = {
    Rounds.ANY: common_pb2.ROUNDS_UNSPECIFIED,
    Rounds.VERIFIED: common_pb2.ROUNDS_VERIFIED,
    Rounds.UNVERIFIED: common_pb2.ROUNDS_UNVERIFIED,
}


def announced(settings: AgentSettings) -> agent_pb2.Capabilities:
    """What the coordinator is told of a policy, so that no round is opened that it refuses."""
    return agent_pb2.Capabilities(
        min_sigma=settings.min_sigma,
        min_quorum=settings.min_quorum,
        min_collusion=settings.min_collusion,
        max_honest=settings.max_honest or 0,
        rounds=_ROUNDS[settings.rounds],
    )


class Policy:
    """Checks a spec, then charges the agent's own ledger for it before anything leaves."""

    def __init__(self, name: str, settings: AgentSettings, ledger: Ledger) -> None:
        self._name = name
        self._settings = settings
        self._ledger = ledger

    def check(self, spec: Spec, serving: Serving) -> None:
        """Refuses a spec that doesn't fit, saying why; nothing is spent."""
        mine, message, offer = self._settings, spec.message, serving.offer
        tests: list[tuple[bool, Callable[[], str]]] = [
            (self._name in spec.roster, lambda: "this agent is not on its roster"),
            (
                spec.parties == tuple(mine.parties) and message.dealer == mine.dealer_name,
                lambda: "its committee is not the one that this agent trusts",
            ),
            (
                spec.seconds_left() > 0,
                lambda: "its deadline has passed; check the clocks of both machines",
            ),
            (
                message.queries <= mine.max_queries,
                lambda: f"{message.queries} queries are over the limit of {mine.max_queries}",
            ),
            (
                message.quorum >= mine.min_quorum,
                lambda: f"a quorum of {message.quorum} is below the least, {mine.min_quorum}",
            ),
            (
                message.verified or message.collusion >= mine.min_collusion,
                lambda: (
                    f"its noise allows for {message.collusion} colluding agents, "
                    f"the least is {mine.min_collusion}"
                ),
            ),
            (
                message.verified
                or mine.max_honest is None
                or message.quorum - message.collusion <= mine.max_honest,
                lambda: (
                    f"its noise counts on {message.quorum - message.collusion} honest agents, "
                    f"the most is {mine.max_honest}"
                ),
            ),
            (
                mine.rounds in (Rounds.ANY, _kind_of(spec)),
                lambda: f"it is {_kind_of(spec)}, and this agent answers {mine.rounds} rounds only",
            ),
            (
                message.classes == offer.classes
                and message.query_dtype == offer.query_dtype
                and spec.query_shape == tuple(offer.query_shape)
                and message.ballot in offer.ballots,
                lambda: "its queries, classes or ballot are not what this agent answers",
            ),
            (
                not spec.ballot.needs_k or spec.roster.get(self._name) == offer.k,
                lambda: "it gives this agent another k",
            ),
            (
                serving.task is None or message.tau == serving.task.vote.tau,
                lambda: "its tau is not the task's",
            ),
        ]
        for passed, why in tests:
            if not passed:
                raise VoteError(ErrorKind.POLICY_REFUSED, why=why())
        if message.sigma < mine.min_sigma:
            raise VoteError(
                ErrorKind.SIGMA_BELOW_POLICY,
                got=message.sigma,
                who="the agent",
                want=mine.min_sigma,
            )

    def cost(self, spec: Spec) -> Mechanism:
        """What a round costs this agent, by its own k: another's must not drain its budget."""
        return spec.mechanism_for(self._name)

    def check_budget(self, spec: Spec, promised: Mapping[str, Mechanism]) -> None:
        """Refuses a round that could not be charged after the promised ones; nothing is written."""
        with self._refusing():
            self._ledger.check(spec.round_id, self.cost(spec), promised)

    def charge(self, spec: Spec) -> None:
        """Writes the spend down; a round that was charged before is not answered again."""
        with self._refusing():
            self._ledger.charge(spec.round_id, self.cost(spec), spec.note)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Says why the ledger refuses."""
        try:
            yield
        except AlreadyCharged as error:
            why = "it was answered before, perhaps by this agent before a restart"
            raise VoteError(ErrorKind.POLICY_REFUSED, why=why) from error
        except BudgetExhausted as error:
            raise VoteError(
                ErrorKind.BUDGET_EXHAUSTED,
                level=error.over.level.value,
                who=f"agent {self._name}",
                why=error.why,
                **error.figures,
            ) from error


def _kind_of(spec: Spec) -> Rounds:
    return Rounds.VERIFIED if spec.message.verified else Rounds.UNVERIFIED
