"""What follows from a plan, in sentences: what to ask for, and when not to ask at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mpc_vote.cli.plan.grid import Cell, Federation, agents_needed
from mpc_vote.cli.plan.words import agreed, labels, rounded, share
from mpc_vote.privacy.mechanisms import Level
from mpc_vote.voting.costing import PlanError

GOOD = 0.9
"""Labels of which so many are right are taken for good here: a student of them hardly differs from
one of true labels (docs/experiments.md)."""

HIDDEN = 8.0
"""The epsilon above which nothing is called hidden: an agent's budget where its owner sets none."""

MODERATE = 1.5
"""Half-way between the epsilons of MNIST's figures: at 2 a linear gradient method comes within a
point of the vote, at 1 it does not."""


def recommended(cells: Sequence[Cell], level: Level, agreement: int, solved: bool) -> Cell:
    """The cell to ask for, at the agreement of this place.

    Of those whose labels are good even if all other votes have one rival: the most queries where
    all cost the same, else the least epsilon. Where there are none, the best labels.
    """
    good = [cell for cell in cells if cell.forecasts[agreement].low >= GOOD]
    if not good:
        return max(cells, key=lambda cell: cell.forecasts[agreement].high)
    if solved:
        return max(good, key=lambda cell: cell.queries)
    return min(good, key=lambda cell: cell.epsilons[level])


def advice(
    federation: Federation, cells: Sequence[Cell], chosen: Cell, agreement: int, level: Level
) -> Iterator[str]:
    """All that should be known before anybody is asked."""
    found = chosen.forecasts[agreement]
    epsilon = chosen.epsilons[level]
    what = f"{chosen.queries} queries at sigma {chosen.sigma:g}"
    cost = f"epsilon {rounded(epsilon)} at {level.value} level"
    if found.low >= GOOD and epsilon > HIDDEN:
        yield (
            f"Don't ask like this: the least that good labels cost here is {cost}, for {what}, and "
            "that protects next to nothing."
        )
    elif found.low >= GOOD:
        yield f"Ask for {what}: {labels(found)} of the labels right {agreed(found)}, {cost}."
    elif found.drowned:
        yield (
            f"Don't ask: of these plans {what} has the best labels, and {agreed(found)} only "
            f"{labels(found)} of them are right, at {cost}."
        )
    else:
        yield (
            f"Of these plans {what} has the best labels: {labels(found)} right {agreed(found)}, "
            f"at {cost}. Fewer queries with less noise cost the same and are right more often."
        )
    yield from _drowned(federation, cells)
    yield from _agents(federation, cells, chosen, found.agreement, level)
    yield _gradients(federation, epsilon, level)


def _drowned(federation: Federation, cells: Sequence[Cell]) -> Iterator[str]:
    """Noise that drowns the lead at every agreement."""
    lost = [cell.sigma for cell in cells if federation.forecast(cell.sigma, 1.0).drowned]
    if lost:
        full = federation.forecast(min(lost), 1.0)
        yield (
            f"Sigma {min(lost):g} drowns the lead: even if all {federation.votes} votes agree, "
            f"{labels(full)} of the labels are right, and guesses are in {share(full.chance)}. "
            "It takes less noise (so fewer queries, or a larger epsilon), more agents, or with "
            "count ballots more neighbours."
        )


def _agents(
    federation: Federation,
    cells: Sequence[Cell],
    chosen: Cell,
    agreement: float,
    level: Level,
) -> Iterator[str]:
    """Whether an organisation can hide among so few."""
    if level is Level.INSTANCE:
        least = min(cell.epsilons[Level.AGENT] for cell in cells)
        if least > HIDDEN:
            yield (
                f"Single records are protected, whole organisations are not: at agent level every "
                f"plan here costs epsilon {rounded(least)} or more."
            )
        return
    paid = chosen.epsilons[level]
    if paid <= HIDDEN and federation.forecast(chosen.sigma, agreement).high >= GOOD:
        return
    try:
        hiding = federation.sigma_for(chosen.queries, min(HIDDEN, paid), level)
    except PlanError as error:
        yield f"No organisation can be hidden this way: {error}."
        return
    needed = agents_needed(federation, hiding, agreement, GOOD)
    if needed == federation.agents:
        found = federation.forecast(hiding, agreement)
        yield (
            f"Epsilon {rounded(paid)} hides no organisation: sigma {hiding:g} makes it "
            f"{HIDDEN:g}, with {labels(found)} of the labels right {agreed(found)}."
        )
        return
    many = f"about {needed}" if needed else "far more"
    yield (
        f"{federation.agents} agents are too few to hide one of them: at sigma {hiding:g} it takes "
        f"{many} for {share(GOOD)} right labels. With few agents plan for single records: "
        "--level instance, with count ballots of neighbours."
    )


def _gradients(federation: Federation, epsilon: float, level: Level) -> str:
    """When a gradient method is the better choice, with what that is known from."""
    if federation.kind.attributes:
        return (
            "For attributes expect a gradient method to be better: linear DP-FedAvg on the same "
            "features had 85.5 % against the vote's 84.7 on CelebA, at epsilon 2.96 "
            "(docs/experiments.md). Use the vote where agents can't send gradients."
        )
    rival = (
        "A linear model by DP-FedSGD or DP-FedAvg on the same features is the one to beat, if "
        "linear models do well on them"
    )
    if level is Level.INSTANCE:
        return (
            f"{rival}: it was level with the vote on Office-Caltech, and at 74 % against its 68 on "
            "a clinical table whose classes overlap (docs/experiments.md). Try both."
        )
    if epsilon >= MODERATE:
        return (
            f"{rival}: at epsilon 2 it was a point below the vote on MNIST, and two above it on "
            "short messages (docs/experiments.md). Try both."
        )
    return (
        f"{rival}; at epsilons this small it falls behind on some data: at epsilon 1 it was three "
        "points below the vote on MNIST, but two above it on short messages (docs/experiments.md)."
    )
