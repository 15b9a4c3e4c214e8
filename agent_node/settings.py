"""Settings of an agent: where its data is, how it votes, and what it refuses."""

from __future__ import annotations

import enum
from math import inf
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from mpc_vote.app.config import Address, Ballot, Delta, Name, Parties, Positive, RoleSettings
from mpc_vote.data.readers import check_reader
from mpc_vote.learning.voters import check_voter


class Rounds(enum.StrEnum):
    """Which rounds an agent answers, by whether agents could stuff their ballots."""

    ANY = "any"
    VERIFIED = "verified"
    UNVERIFIED = "unverified"


class AgentSettings(RoleSettings):
    """An organisation's agent: holds private data, votes on public queries, dials out only."""

    command: ClassVar[str] = "agent"

    data: Path = Field(description="npz file with private points x and labels y, or demo")
    reader: Annotated[str, AfterValidator(check_reader)] | None = Field(
        None,
        description="how to read --data: npz, or module:function of your own; by the file's ending "
        "if left out",
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
    voter: Annotated[str, AfterValidator(check_voter)] = Field(
        "knn",
        description="knn: nearest neighbours; network: a model trained on this agent's data; or "
        "module:function of your own",
    )
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
    seed: int = Field(0, ge=0, description="seed of a network's training")
    min_sigma: float = Field(0.0, ge=0, description="refuse rounds with less noise, in votes")
    min_quorum: int = Field(3, ge=1, description="refuse rounds that may end with fewer agents")
    min_collusion: int = Field(
        1, ge=0, description="refuse rounds whose noise allows for fewer colluding agents"
    )
    max_honest: int | None = Field(
        None,
        ge=1,
        description="refuse rounds whose noise relies on more honest agents, this one included "
        "(their quorum less their colluding agents)",
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
    delta: Delta = Field(1e-3, description="delta of the budgets")
