"""Who holds what: private parts for agents, public queries, a test set; and parts as files.

`hand_out` makes parts of a deal, the splits here deal and set aside in one go. A split depends on
its arguments only, so every process of a demo can compute the same one. Parts are written as .npz
and read without pickle: a part file can't run code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpc_vote.data.assignment import Rows, deal_iid
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.files import read_npz

_KEYS = ("name", "x", "y", "classes")


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint parts of one dataset. The labels of `public` are for scoring only."""

    private: tuple[Dataset, ...]
    public: Dataset
    test: Dataset


@dataclass(frozen=True, eq=False)
class Domain:
    """A dataset for some of the agents: `size` points for each, or all points shared out."""

    dataset: Dataset
    agents: int = 1
    size: int | None = None


def hand_out(dataset: Dataset, deal: Sequence[Rows]) -> tuple[Dataset, ...]:
    """One dataset per agent, named for it."""
    return tuple(
        dataset.take(rows, f"{dataset.name}/agent-{number}") for number, rows in enumerate(deal)
    )


def split_domains(domains: Sequence[Domain], seed: int) -> tuple[Dataset, ...]:
    """Agents that hold one domain each, IID within it: the paper's digits and Office-Caltech."""
    _check_seed(seed)
    if len({id(domain.dataset) for domain in domains}) < len(domains):
        raise ValueError("a dataset may be one domain only, or points would be held twice")
    seeds = np.random.default_rng(seed).integers(2**62, size=len(domains)).tolist()
    parts: list[Dataset] = []
    for domain, own_seed in zip(domains, seeds, strict=True):
        deal = deal_iid(len(domain.dataset), domain.agents, domain.size, own_seed)
        parts += hand_out(domain.dataset, deal)
    return tuple(parts)


def split_public(dataset: Dataset, public: int, seed: int) -> tuple[Dataset, Dataset]:
    """Public queries and a test set out of a dataset that no agent holds; test is the rest."""
    _check_seed(seed)
    if not 1 <= public < len(dataset):
        raise ValueError(
            f"{dataset.name} has {len(dataset)} points: public must be from 1 to "
            f"{len(dataset) - 1}, got {public}"
        )
    order = _shuffle(dataset, seed)
    queries = dataset.take(order[:public], f"{dataset.name}/public")
    return queries, dataset.take(order[public:], f"{dataset.name}/test")


def split_iid(dataset: Dataset, agents: int, public: int, test: int, seed: int) -> Partition:
    """Equal private parts, drawn at random: every agent sees the same distribution."""
    order, rest = _draw(dataset, agents, public, test, seed)
    return _partition(dataset, order, public, test, np.array_split(rest, agents))


def split_skewed(
    dataset: Dataset, agents: int, public: int, test: int, seed: int, holders: int
) -> Partition:
    """Each class is held by `holders` of the agents only, so that no agent can label alone.

    Classes are dealt to the agents that hold the fewest so far, which keeps the parts of like size.
    """
    if not 1 <= holders <= agents:
        raise ValueError(f"a class can be held by 1 to {agents} agents, got {holders}")
    if holders * dataset.classes < agents:
        raise ValueError(
            f"{dataset.classes} classes with {holders} holders each leave some of {agents} agents "
            "without data; raise the holders"
        )
    order, rest = _draw(dataset, agents, public, test, seed)
    rng = np.random.default_rng([seed, 1])
    load = np.zeros(agents, dtype=np.int64)
    held: list[list[Rows]] = [[] for _ in range(agents)]
    for label in rng.permutation(dataset.classes):
        chosen = np.lexsort((rng.random(agents), load))[:holders]
        load[chosen] += 1
        pieces = np.array_split(rest[dataset.y[rest] == label], holders)
        for agent, piece in zip(chosen, pieces, strict=True):
            held[agent].append(piece)
    parts = [np.sort(np.concatenate(pieces)) for pieces in held]
    if any(len(part) == 0 for part in parts):
        raise ValueError("an agent would hold no points; lower public, test or agents")
    return _partition(dataset, order, public, test, parts)


def save_part(path: str | Path, dataset: Dataset) -> None:
    """Write a dataset as a compressed .npz at exactly this path."""
    with Path(path).open("wb") as file:
        np.savez_compressed(
            file,
            name=np.array(dataset.name),
            x=dataset.x,
            y=dataset.y,
            classes=np.array(dataset.classes, dtype=np.int64),
        )


def load_part(path: str | Path) -> Dataset:
    """Read what `save_part` wrote, or a file of the same form; ValueError says what is wrong."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such data file")
    arrays = read_npz(path, _KEYS)
    name, classes = arrays["name"], arrays["classes"]
    if name.shape != () or name.dtype.kind != "U":
        raise ValueError(f"{path}: name must be one string")
    if classes.shape != () or classes.dtype.kind not in "iu":
        raise ValueError(f"{path}: classes must be one integer")
    try:
        return Dataset(str(name), arrays["x"], arrays["y"], int(classes))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _draw(dataset: Dataset, agents: int, public: int, test: int, seed: int) -> tuple[Rows, Rows]:
    """A shuffled order of all rows, and the rows of it that stay private."""
    for what, count in (("agents", agents), ("public", public), ("test", test)):
        if count < 1:
            raise ValueError(f"{what} must be at least 1, got {count}")
    _check_seed(seed)
    if len(dataset) < public + test + agents:
        raise ValueError(
            f"{dataset.name} has {len(dataset)} points: too few for {public} public, {test} test "
            f"and at least one for each of {agents} agents"
        )
    order = _shuffle(dataset, seed)
    return order, order[public + test :]


def _partition(
    dataset: Dataset, order: Rows, public: int, test: int, parts: list[Rows]
) -> Partition:
    return Partition(
        private=hand_out(dataset, parts),
        public=dataset.take(order[:public], f"{dataset.name}/public"),
        test=dataset.take(order[public : public + test], f"{dataset.name}/test"),
    )


def _shuffle(dataset: Dataset, seed: int) -> Rows:
    return np.random.default_rng(seed).permutation(len(dataset)).astype(np.int64)


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
