"""Who holds what: private parts for agents, public queries, a test set; and parts as files.

A split depends on its arguments only, so every process of a demo can compute the same one. Parts
are written as .npz and read without pickle: a part file can't run code.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpc_vote.data.dataset import Dataset, LabelArray

_KEYS = ("name", "x", "y", "classes")


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint parts of one dataset. The labels of `public` are for scoring only."""

    private: tuple[Dataset, ...]
    public: Dataset
    test: Dataset


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
    held: list[list[LabelArray]] = [[] for _ in range(agents)]
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
    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            arrays = {key: stored[key] for key in _KEYS if key in stored.files}
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a readable .npz without pickle ({error})") from error
    missing = [key for key in _KEYS if key not in arrays]
    if missing:
        raise ValueError(f"{path}: misses {', '.join(missing)}; expected {', '.join(_KEYS)}")
    name, classes = arrays["name"], arrays["classes"]
    if name.shape != () or name.dtype.kind != "U":
        raise ValueError(f"{path}: name must be one string")
    if classes.shape != () or classes.dtype.kind not in "iu":
        raise ValueError(f"{path}: classes must be one integer")
    try:
        return Dataset(str(name), arrays["x"], arrays["y"], int(classes))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _draw(
    dataset: Dataset, agents: int, public: int, test: int, seed: int
) -> tuple[LabelArray, LabelArray]:
    """A shuffled order of all rows, and the rows of it that stay private."""
    for what, count in (("agents", agents), ("public", public), ("test", test)):
        if count < 1:
            raise ValueError(f"{what} must be at least 1, got {count}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    if len(dataset) < public + test + agents:
        raise ValueError(
            f"{dataset.name} has {len(dataset)} points: too few for {public} public, {test} test "
            f"and at least one for each of {agents} agents"
        )
    order = np.random.default_rng(seed).permutation(len(dataset)).astype(np.int64)
    return order, order[public + test :]


def _partition(
    dataset: Dataset, order: LabelArray, public: int, test: int, parts: list[LabelArray]
) -> Partition:
    return Partition(
        private=tuple(
            dataset.take(rows, f"{dataset.name}/agent-{index}") for index, rows in enumerate(parts)
        ),
        public=dataset.take(order[:public], f"{dataset.name}/public"),
        test=dataset.take(order[public : public + test], f"{dataset.name}/test"),
    )
