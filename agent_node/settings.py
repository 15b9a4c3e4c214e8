"""Settings of an agent: where its data is, how it votes, and what it refuses."""

from __future__ import annotations

import enum
from math import inf
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from mpc_vote.app.config import Address, Ballot, Delta, Name, Parties, Positive, RoleSettings
from mpc_vote.data.readers import BadRows, check_reader
from mpc_vote.learning.voters import ModelInputs, check_voter, needs_data
from mpc_vote.privacy.charging import Against
from mpc_vote.voting.limits import MAX_TASKS
from mpc_vote.voting.planning import DELTA


class Rounds(enum.StrEnum):
    """Which rounds an agent answers, by whether agents could stuff their ballots."""

    ANY = "any"
    VERIFIED = "verified"
    UNVERIFIED = "unverified"


class VoterSettings(BaseModel):
    """How private data is read, and what votes by it."""

    reader: Annotated[str, AfterValidator(check_reader)] | None = Field(
        None,
        description="how to read --data: npz, or module:function of your own; by the file's ending "
        "if left out",
    )
    voter: Annotated[str, AfterValidator(check_voter)] = Field(
        "knn",
        description="knn: nearest neighbours; network: a model trained on this agent's data; "
        "sklearn, onnx, torch or http: the model in --model; or module:function of your own",
    )
    weights: Path | None = Field(
        None,
        description="weights of the task's feature map; looked for in their usual place if not",
    )
    model: str | None = Field(
        None,
        description="model of your own: a file of skops, ONNX or torch.export, or the URL of an "
        "Open Inference service, http(s)://host/v2/models/NAME",
    )
    inputs: ModelInputs = Field(
        ModelInputs.FEATURES,
        description="what such a model takes: the task's features, or its inputs raw",
    )
    trust: list[str] = Field(
        [], description="types that a scikit-learn model may hold though skops does not know them"
    )
    model_ca: Path | None = Field(
        None, description="PEM file of the authority of the model's service; the system's if not"
    )
    plain_http: bool = Field(
        False, description="allow votes to come from another machine without TLS"
    )
    public: Path | None = Field(
        None,
        description="unlabelled public records like those that may be asked, by which a network "
        "learns when not to vote",
    )
    start_seconds: Positive = Field(
        600.0, description="how long a voter in a process of its own may take to load"
    )
    seed: int = Field(0, ge=0, description="seed of a network's training")
    bad_rows: BadRows = Field(
        "refuse", description="rows of a task's data that can't be used: refuse or skip"
    )


class ServedTask(VoterSettings):
    """A further task of an agent: a table `[[serves]]` of its file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: Path = Field(description="the task's file")
    data: Path | None = Field(
        None,
        validate_default=True,
        description="file or folder of private records of the task; a model in --model needs none",
    )

    @field_validator("data")
    @classmethod
    def _given(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is None and needs_data(info.data.get("voter", "")):
            raise ValueError("is missing")
        return value


class AgentSettings(VoterSettings, RoleSettings):
    """An organisation's agent: holds private data, votes on public queries, dials out only."""

    command: ClassVar[str] = "agent"

    serves: list[ServedTask] = Field(
        [],
        max_length=MAX_TASKS - 1,
        description="further tasks, as tables [[serves]] of the file, each with task and data, "
        "and if need be reader, voter, seed and bad_rows",
    )
    task: Path | None = Field(
        None,
        description="the task's file: k, features, reach and ballots follow from it; rounds "
        "without a task if left out",
    )
    data: Path | None = Field(
        None,
        validate_default=True,
        description="private records of the task, which a model in --model does without; without a "
        "task an npz file with points x and labels y, or demo",
    )
    data_dir: Path = Field(description="folder for this agent's own privacy ledger")
    coordinator: Address = Field(description="host:port or unix:/path of the coordinator")
    coordinator_name: Name = Field(
        "coordinator", description="name in the coordinator's certificate"
    )
    parties: Parties = Field(
        description="the parties that this agent trusts, in rank order: name=host:port,..."
    )
    enrol: Address | None = Field(
        None, description="where to enrol when --certs holds no cert.pem yet"
    )
    enrol_seconds: Positive = Field(120.0, description="how long to try to enrol")
    token_file: Path | None = Field(None, description="file with the token to enrol with")
    token_pool: Path | None = Field(
        None, description="folder of tokens that several agents share; this one takes one of them"
    )
    ca: Path | None = Field(
        None, description="the authority to trust when enrolling; ca.pem in --certs if left out"
    )
    health_listen: Address | None = Field(
        None, description="host:port or unix:/path to serve the health of this agent on"
    )
    dealer_name: Name = Field("dealer", description="the dealer that this agent trusts")
    k: int = Field(10, ge=1, le=100_000, description="neighbours that vote; public")
    features: str = Field(
        "raw", description="fixed feature map for neighbours: raw, strokes or unit"
    )
    reach: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="count only neighbours within the distance at which this fraction of the other "
        "queries lies",
    )
    min_sigma: float = Field(0.0, ge=0, description="refuse rounds with less noise, in votes")
    min_quorum: int = Field(3, ge=1, description="refuse rounds that may end with fewer agents")
    min_collusion: int = Field(
        1,
        ge=0,
        description="refuse unverified rounds whose noise allows for fewer colluding agents",
    )
    max_honest: int | None = Field(
        None,
        ge=1,
        description="refuse unverified rounds whose noise relies on more honest agents, this one "
        "included (their quorum less their colluding agents)",
    )
    rounds: Rounds = Field(Rounds.ANY, description="rounds to answer: any, verified or unverified")
    ballots: list[Ballot] = Field(
        [], description="kinds of ballots to cast; all that its voter has if left out"
    )
    max_queries: int = Field(10_000, ge=1, description="refuse larger rounds")
    budget_agent: float = Field(inf, gt=0, description="limit of total epsilon at agent level")
    budget_instance: float = Field(
        8.0, gt=0, description="limit of total epsilon at instance level; inf for no limit"
    )
    budget_against: Against = Field(
        Against.TOTALS,
        description="whom budgets are held against: totals (malicious parties may see noisy "
        "totals) or labels (clients, the server, semi-honest parties)",
    )
    delta: Delta = Field(
        DELTA, description="delta of the budgets: far below one over the number of records"
    )

    @field_validator("data")
    @classmethod
    def _given(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        served, task = info.data.get("serves", True), info.data.get("task")
        needed = not served if task is None else needs_data(info.data.get("voter", ""))
        if value is None and needed:
            raise ValueError("is missing: pass --data, or set it in the file or the environment")
        return value
