"""Labels are held out to see which student would have guessed them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mpc_vote.data.dataset import LabelArray

Places = npt.NDArray[np.int64]


def stratified(labels: LabelArray, folds: int, rng: np.random.Generator) -> Places:
    """The fold of each label, such that each class is in all of them as evenly as can be.

    Classes follow each other without starting anew, so that those of few labels don't all meet in
    the first folds.
    """
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    found = np.empty(len(labels), dtype=np.int64)
    found[order] = np.arange(len(labels)) % folds
    return rng.permutation(folds)[found]
