"""Settings of the coordinator."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from mpc_vote.app.config import Address, Delta, Engine, Name, Parties, Positive, RoleSettings
from mpc_vote.argmax.registry import TABLE
from mpc_vote.learning import students
from mpc_vote.privacy.charging import Against
from mpc_vote.privacy.ledger import LEDGER_ID
from mpc_vote.voting import planning
from mpc_vote.voting.limits import MAX_K, MAX_ROUNDS_AT_ONCE, MAX_TASKS


def _ledgers(value: dict[str, str]) -> dict[str, str]:
    for ledger_id in value.values():
        if not LEDGER_ID.fullmatch(ledger_id):
            raise ValueError(
                f"{ledger_id!r} is no ledger's id: copy it from the agent's `mpc-vote budget`"
            )
    return value


Ledgers = Annotated[dict[Name, str], AfterValidator(_ledgers)]


class CoordinatorSettings(RoleSettings):
    """The server: opens rounds, learns labels, trains the global model."""

    command: ClassVar[str] = "coordinator"

    listen: Address = Field(
        "127.0.0.1:7000", description="host:port to serve clients and agents on"
    )
    enrol_listen: Address | None = Field(
        None, description="host:port on which agents with a token enrol; no enrolment if left out"
    )
    agent_authority: Path | None = Field(
        None, description="folder of the agents' authority, to sign agents that enrol"
    )
    data_dir: Path = Field(description="folder for ledger, rounds and models")
    parties: Parties = Field(description="all parties in rank order: name=host:port,...")
    dealer_name: Name = Field("dealer", description="name in the dealer's certificate")
    task: list[Path] = Field(
        [],
        max_length=MAX_TASKS,
        description="files of the tasks to serve, beside rounds without a task",
    )
    weights: dict[Name, Path] = Field(
        {},
        description="weights of tasks' feature maps, to train on their rounds: task=path,...; "
        "looked for in their usual place if not",
    )
    engine: Engine = Field(
        TABLE, description="how the winner is found, where a request names no engine"
    )
    sigma: Positive = Field(25.0, description="noise in votes where a request names none")
    min_sigma: float = Field(
        0.1, ge=0, description="requests with less noise are refused: they would use up the budget"
    )
    delta: Delta = Field(planning.DELTA, description="delta at which epsilon is reported")
    quorum_fraction: float = Field(
        planning.QUORUM_FRACTION,
        gt=0,
        le=1,
        description="fraction of the roster that must answer, where a request names no quorum",
    )
    collusion: int = Field(
        planning.COLLUSION,
        ge=0,
        description="agents assumed to pool their noise in unverified rounds, where a request does "
        "not say",
    )
    min_k: int = Field(1, ge=1, description="agents that count fewer neighbours are on no roster")
    max_k: int = Field(
        1_000, ge=1, le=MAX_K, description="agents that count more neighbours are on no roster"
    )
    student: Annotated[str, AfterValidator(students.check_student)] = Field(
        students.DEFAULT,
        description="how the global model learns: chooser weighs linear, network, "
        "propagation and prototypes; or one of these; or module:name of your own",
    )
    answer_seconds: int = Field(60, ge=1, le=3_000, description="time that agents have to answer")
    aggregate_seconds: Positive = Field(300.0, description="time for the secure argmax")
    max_open_rounds: int = Field(
        4,
        ge=1,
        le=MAX_ROUNDS_AT_ONCE,
        description="further requests are told when to ask again",
    )
    revoked_agents: list[str] = Field(
        [], description="names of agents that may no longer connect, whatever their certificates"
    )
    accept_ledgers: Ledgers = Field(
        {}, description="new ledgers of agents that have lost theirs: name=id,..."
    )
    budget_agent: float = Field(inf, gt=0, description="limit of total epsilon at agent level")
    budget_instance: float = Field(
        inf, gt=0, description="limit of total epsilon at instance level"
    )
    budget_against: Against = Field(
        Against.TOTALS,
        description="whom budgets are held against: totals (malicious parties may see noisy "
        "totals) or labels (clients, the server, semi-honest parties)",
    )

    @field_validator("max_k")
    @classmethod
    def _in_order(cls, value: int, info: ValidationInfo) -> int:
        low = info.data.get("min_k", 1)
        if value < low:
            raise ValueError(f"must be at least --min-k, {low}, not {value}")
        return value
