"""The options of `mpc-vote account`, and the plan and the goal that they describe."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

from pydantic import Field

from mpc_vote.app.config import Ballot, ConfigError, LogLevel, Method, Settings
from mpc_vote.cli.account.plot import FORMATS
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.voting.ballots import KNN_COUNT, KNN_FREQUENCY, MULTI_LABEL, ONE_HOT, BallotKind
from mpc_vote.voting.costing import MIN_SIGMA, Accountant, CostPlan, Noise, PlanError, Roster
from mpc_vote.voting.planning import DELTA

N = TypeVar("N", int, float)

MAX_EPSILON = 1000.0


class Solve(enum.StrEnum):
    """What is looked for."""

    SIGMA = "sigma"
    QUERIES = "queries"


class _FiguresSettings(Settings):
    """What both forms of the command have."""

    json_path: str | None = Field(
        None,
        alias="json",
        description="also write the figures as JSON to this file; alone or with -: to stdout",
    )
    log_level: LogLevel = Field("warning", description="debug, info, warning or error")


class AccountSettings(_FiguresSettings):
    """Says what epsilon a plan costs, at agent and at instance level, and what colluding agents
    leave of it; or finds the noise or the number of queries for an epsilon.

    For kNN, --ballot is knn_frequency by default, as in the paper. The service's default is
    knn_count, where each neighbour has a vote of its own, and that costs another epsilon for the
    same sigma: pass --ballot knn_count for what the service reports.

    Nothing is asked of any service. See also: mpc-vote account paper, which sets the epsilons
    published for AE-DPFL and kNN-DPFL beside what their settings cost.
    """

    command: ClassVar[str] = "account"

    method: Method = Field(
        Method.AE, description="ae: local models vote; knn: nearest neighbours do"
    )
    ballot: Ballot | None = Field(
        None,
        description="kind of ballots: for knn, knn_frequency (neighbours share a vote; the default "
        "here) or knn_count (one each; the service's default); for ae, one_hot, or with --tau "
        "multi_label",
    )
    noise: Noise = Field(
        Noise.SKELLAM,
        description="coins: as the committee draws it in verified rounds; skellam: as agents add "
        "it in others; gaussian: ideal, on votes without rounding",
    )
    sigma: float | None = Field(None, description="noise that counts in one total, in votes")
    queries: int | None = Field(None, description="number of labels to release, over all rounds")
    k: list[int] = Field(
        [], description="knn only: public number of neighbours; several if agents differ"
    )
    tau: int | None = Field(
        None,
        ge=1,
        description="ae only: most attributes an agent says yes to; makes it multi-label",
    )
    agents: int | None = Field(None, description="agents in the roster; needed for coalitions")
    quorum: int | None = Field(
        None, description="least number of agents a round completes with; all if left out"
    )
    collusion: int = Field(
        0, description="agents assumed to pool their noise, which the others make up for"
    )
    delta: float = Field(DELTA, description="delta at which epsilon is given")
    epsilon: float | None = Field(None, description="with --solve: the most epsilon to lose")
    solve: Solve | None = Field(
        None, description="find for --epsilon: sigma (the least) or queries (the most)"
    )
    level: Level | None = Field(None, description="with --solve: agent (default) or instance")
    accountant: Accountant | None = Field(
        None, description="with --solve: simple, tight, totals (default), labels or exact"
    )
    plot: Path | None = Field(
        None, description=f"draw epsilon against the number of queries: {', '.join(FORMATS)}"
    )


class PaperSettings(_FiguresSettings):
    """Sets every epsilon of "Voting-based Approaches for Differentially Private Federated Learning"
    beside what its settings cost, and says which follow from its own formula.
    """

    command: ClassVar[str] = "account paper"


@dataclass(frozen=True)
class Goal:
    """What is looked for."""

    solve: Solve
    epsilon: float
    level: Level
    accountant: Accountant


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """A `--json` that names no file means standard output."""
    given: list[str] = []
    for place, argument in enumerate(arguments):
        given.append(argument)
        last = place + 1 == len(arguments)
        if argument == "--json" and (last or arguments[place + 1].startswith("--")):
            given.append("-")
    return given


def plan_of(settings: AccountSettings) -> CostPlan:
    """The plan as given; what is to be found has a place holder."""
    ballot = _ballot(settings)
    roster = None
    try:
        if settings.agents is not None:
            quorum = settings.agents if settings.quorum is None else settings.quorum
            roster = Roster(settings.agents, quorum, settings.collusion)
        elif settings.quorum is not None or settings.collusion:
            raise ConfigError("--agents: is missing: a quorum or a collusion bound needs --agents")
        return CostPlan(
            ballot=ballot,
            noise=settings.noise,
            sigma=_given(settings, Solve.SIGMA, settings.sigma, MIN_SIGMA),
            queries=_given(settings, Solve.QUERIES, settings.queries, 1),
            delta=settings.delta,
            ks=tuple(settings.k),
            tau=settings.tau,
            roster=roster,
        )
    except PlanError as error:
        raise ConfigError(str(error)) from error


def _ballot(settings: AccountSettings) -> BallotKind:
    if settings.method is Method.AE:
        if settings.k:
            raise ConfigError("--k: is for --method knn; models vote without neighbours")
        return _one_of(settings, MULTI_LABEL if settings.tau is not None else ONE_HOT)
    if settings.tau is not None:
        if settings.k:
            raise ConfigError(
                "--tau: with attributes --k does not matter: an agent says yes to at most tau of "
                "them, however it finds out"
            )
        return _one_of(settings, MULTI_LABEL)
    if not settings.k:
        raise ConfigError("--k: is missing: pass --k, the public number of neighbours")
    return _one_of(settings, KNN_FREQUENCY, KNN_COUNT)


def _one_of(settings: AccountSettings, *kinds: BallotKind) -> BallotKind:
    """The kind that is asked for, the first if none is; refused if it is none of these."""
    chosen = settings.ballot or kinds[0]
    if chosen not in kinds:
        with_tau = "" if settings.tau is None else " with --tau"
        names = " or ".join(kind.name for kind in kinds)
        raise ConfigError(
            f"--ballot: --method {settings.method}{with_tau} casts {names}, not {chosen.name}"
        )
    return chosen


def _given(settings: AccountSettings, name: Solve, value: N | None, place_holder: N) -> N:
    if settings.solve is name:
        if value is not None:
            raise ConfigError(f"--{name}: is both given and to be found: drop it or --solve {name}")
        return place_holder
    if value is None:
        raise ConfigError(f"--{name}: is missing: pass --{name}, or find it with --solve {name}")
    return value


def goal_of(settings: AccountSettings) -> Goal | None:
    """What is to be found, if anything is."""
    if settings.solve is None:
        if settings.epsilon is not None:
            raise ConfigError(
                "--epsilon says what to solve for: add --solve sigma (the least noise) or "
                "--solve queries (the most labels)"
            )
        for name in ("level", "accountant"):
            if getattr(settings, name) is not None:
                raise ConfigError(f"--{name}: is for --solve sigma or --solve queries only")
        return None
    if settings.epsilon is None:
        raise ConfigError(f"--epsilon: is missing: --solve {settings.solve} needs --epsilon")
    if not 0 < settings.epsilon <= MAX_EPSILON:
        raise ConfigError(f"--epsilon: must be above 0 and at most {MAX_EPSILON:g}")
    return Goal(
        settings.solve,
        settings.epsilon,
        settings.level or Level.AGENT,
        settings.accountant or Accountant.TOTALS,
    )
