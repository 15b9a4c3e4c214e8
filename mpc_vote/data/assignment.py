"""Which rows of a dataset each agent holds.

A deal is one array of row numbers per agent, sorted: 800 agents then cost no copy of the data.
Each depends on its arguments and seed only, and no row is dealt twice, but by `deal_repeatedly`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import LabelArray

Rows = npt.NDArray[np.int64]
Deal = tuple[Rows, ...]

_TRIES = 1000
_CLASS_TRIES = 20


def deal_iid(points: int, agents: int, size: int | None, seed: int) -> Deal:
    """`size` points to each agent at random, or all points in shares that differ by one at most."""
    rng = _generator(agents, seed)
    wanted = points if size is None else agents * size
    if points < agents or not agents <= wanted <= points:
        raise ValueError(
            f"{points} points can't give each of {agents} agents {size or 'at least one'}; "
            "lower agents or size"
        )
    return _sorted(np.array_split(rng.permutation(points)[:wanted], agents))


def deal_by_class(labels: LabelArray, agents: int, size: int, classes_each: int, seed: int) -> Deal:
    """Exactly `size` points of exactly `classes_each` classes to each agent.

    The paper's non-IID partition, 600 points of 6 digits each, where all of MNIST's classes are
    used up though they differ in size. A class gets as many holders as its points suffice for, each
    agent draws its classes by the holders that are still wanted, and takes from them in equal
    shares, shifted only as far as the stock of a class demands.
    """
    rng = _generator(agents, seed)
    stock = np.bincount(_vector(labels)).astype(np.int64)
    classes = int(np.count_nonzero(stock))
    if not 1 <= classes_each <= min(size, classes):
        raise ValueError(
            f"an agent with {size} points of {classes} classes can't hold points of exactly "
            f"{classes_each}; choose another number of classes"
        )
    holders = _holders(stock, agents, size, classes_each)
    for _ in range(_CLASS_TRIES):
        amounts = _equal_shares(_draw_classes(holders, agents, rng), size, rng)
        if _shift_to_stock(amounts, stock):
            break
    else:
        raise ValueError(
            f"found no way to give {agents} agents {size} points of {classes_each} classes each; "
            "lower agents or size"
        )
    parts: list[list[Rows]] = [[] for _ in range(agents)]
    for label, column in enumerate(amounts.T):
        rows = rng.permutation(np.flatnonzero(labels == label))[: column.sum()]
        for part, piece in zip(parts, np.split(rows, np.cumsum(column)[:-1]), strict=True):
            part.append(piece)
    return _sorted([np.concatenate(part) for part in parts])


def deal_shards(labels: LabelArray, agents: int, shards_each: int, seed: int) -> Deal:
    """Points sorted by label, cut into equal shards, and `shards_each` of them to each agent.

    McMahan et al. 2017, who give two shards each. What is left over after the cut is not dealt.
    """
    rng = _generator(agents, seed)
    points, shards = len(_vector(labels)), agents * shards_each
    if shards_each < 1 or points < shards:
        raise ValueError(
            f"{points} points can't be cut into {shards_each} shards for each of {agents} agents"
        )
    kept = rng.permutation(points)[: points // shards * shards]
    by_label = kept[np.argsort(labels[kept], kind="stable")].reshape(shards, -1)
    return _sorted(by_label[rng.permutation(shards)].reshape(agents, -1))


def deal_dirichlet(
    labels: LabelArray, agents: int, alpha: float, seed: int, least: int = 1
) -> Deal:
    """All points, each class divided among the agents by a draw of Dirichlet(alpha).

    A small alpha gives each agent few classes and the agents different sizes. Draws that leave an
    agent fewer than `least` points are made again.
    """
    rng = _generator(agents, seed)
    if not 0 < alpha < np.inf:
        raise ValueError(f"alpha must be positive, got {alpha}")
    if least < 1 or len(_vector(labels)) < agents * least:
        raise ValueError(
            f"{len(labels)} points can't give each of {agents} agents at least {least}"
        )
    stock = np.bincount(labels)
    for _ in range(_TRIES):
        shares = rng.dirichlet(np.full(agents, alpha), size=len(stock))
        cuts = np.rint(np.cumsum(shares, axis=1)[:, :-1] * stock[:, None]).astype(np.int64)
        ends = np.concatenate([cuts, stock[:, None]], axis=1)
        if np.diff(ends.sum(axis=0), prepend=0).min() >= least:
            break
    else:
        raise ValueError(
            f"no draw of Dirichlet({alpha}) out of {_TRIES} gave each of {agents} agents {least} "
            "points; raise alpha, or lower agents or the least size"
        )
    classes = [rng.permutation(np.flatnonzero(labels == label)) for label in range(len(stock))]
    pieces = [np.split(rows, cut) for rows, cut in zip(classes, cuts, strict=True)]
    return _sorted([np.concatenate(part) for part in zip(*pieces, strict=True)])


def deal_repeatedly(deal: Callable[[int, int], Deal], agents: int, at_once: int, seed: int) -> Deal:
    """More agents than the points suffice for: the data is dealt anew to every `at_once` agents.

    `deal` takes a number of agents and a seed. The paper's "data samples are randomly duplicated":
    800 agents with 600 of MNIST's 60,000 points each are 8 deals of 100 agents. No agent holds a
    point twice, and no point has more copies than there were deals.
    """
    rng = _generator(agents, seed)
    if at_once < 1:
        raise ValueError(f"at least one agent must be dealt to at once, got {at_once}")
    dealt: list[Rows] = []
    while len(dealt) < agents:
        dealt += deal(min(at_once, agents - len(dealt)), int(rng.integers(2**62)))
    return tuple(dealt)


def _holders(stock: Rows, agents: int, size: int, classes_each: int) -> Rows:
    """How many agents hold each class.

    Places go one by one to the class where they make the most points available, then to
    the one with the most points per holder. The first is a sum of concave functions, so that taking
    the best place each time is the best there is: where it does not suffice, nothing does.
    """
    most = size - classes_each + 1
    holders = np.zeros_like(stock)
    for _ in range(agents * classes_each):
        gain = np.clip(stock - holders * most, 0, most)
        open_places = np.flatnonzero(holders < np.minimum(stock, agents))
        if len(open_places) == 0:
            break
        order = np.lexsort((stock[open_places] / (holders[open_places] + 1), gain[open_places]))
        holders[open_places[order[-1]]] += 1
    within_reach = np.minimum(stock, holders * most).sum()
    if holders.sum() < agents * classes_each or within_reach < agents * size:
        raise ValueError(
            f"classes of {stock.tolist()} points can't give {agents} agents {size} points of "
            f"{classes_each} classes each; lower agents or size"
        )
    return holders


def _draw_classes(holders: Rows, agents: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Which agent holds which class: every row has as many, every column its number of holders.

    A class that all remaining agents must hold is taken; the rest is drawn by what is still open.
    """
    open_places = holders.copy()
    each = int(holders.sum()) // agents
    held = np.zeros((agents, len(holders)), dtype=np.bool_)
    for left, row in zip(range(agents, 0, -1), held, strict=True):
        row[open_places == left] = True
        optional = np.where(row, 0, open_places)
        if missing := each - int(row.sum()):
            chances = optional / optional.sum()
            row[rng.choice(len(holders), missing, replace=False, p=chances)] = True
        open_places -= row
    return held[rng.permutation(agents)]


def _equal_shares(held: npt.NDArray[np.bool_], size: int, rng: np.random.Generator) -> Rows:
    """Each row's `size` points over the classes that it holds, the odd ones at random."""
    each = int(held[0].sum())
    ranks = np.argsort(np.argsort(np.where(held, rng.random(held.shape), 2.0), axis=1), axis=1)
    return np.where(held, size // each + (ranks < size % each), 0).astype(np.int64)


def _shift_to_stock(amounts: Rows, stock: Rows) -> bool:
    """Shift points between the classes of an agent, in place, until no class is overdrawn.

    From an overdrawn class a shortest path leads over agents that hold two classes to one with
    points to spare, rather to the class with the smallest shares; one point goes along it. Without
    a path, no amounts fit (max-flow, min-cut).
    """
    holders = np.maximum(np.count_nonzero(amounts, axis=0), 1)
    while len(over := np.flatnonzero((taken := amounts.sum(axis=0)) > stock)):
        spare = taken < stock
        smallest_first = np.argsort(taken / holders, kind="stable").tolist()
        came_from = {int(over[0]): -1}
        queue = list(came_from)
        for place in queue:
            if spare[place]:
                break
            givers = amounts[amounts[:, place] > 1]
            for other in smallest_first:
                if other not in came_from and (givers[:, other] > 0).any():
                    came_from[other] = place
                    queue.append(other)
        else:
            return False
        while (source := came_from[place]) >= 0:
            able = (amounts[:, source] > 1) & (amounts[:, place] > 0)
            lead = np.where(able, amounts[:, source] - amounts[:, place], np.iinfo(np.int64).min)
            giver = int(lead.argmax())
            amounts[giver, source] -= 1
            amounts[giver, place] += 1
            place = source
    return True


def _vector(labels: LabelArray) -> LabelArray:
    if labels.ndim != 1:
        raise ValueError("points with several attributes have no class to divide them by")
    return labels


def _generator(agents: int, seed: int) -> np.random.Generator:
    if agents < 1:
        raise ValueError(f"agents must be at least 1, got {agents}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    return np.random.default_rng(seed)


def _sorted(parts: Sequence[Rows] | Rows) -> Deal:
    return tuple(np.sort(part).astype(np.int64) for part in parts)
