"""A real clinical table that comes with an installed package, so that a demo needs no download.

569 biopsies of breast tissue with 30 measurements each (Wisconsin, 1993), packaged with
scikit-learn; 212 are malignant and 357 benign.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

LABEL = "diagnosis"


@dataclass(frozen=True, eq=False)
class ClinicalTable:
    """Columns by name, and a class for each row."""

    columns: tuple[str, ...]
    values: npt.NDArray[np.float64]
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)

    def write(self, path: Path, rows: Sequence[int], *, labelled: bool = True) -> None:
        """Some rows as a CSV file, with a column of labels or without."""
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*self.columns, LABEL] if labelled else self.columns)
            for row in rows:
                label = [self.classes[self.labels[row]]] if labelled else []
                writer.writerow([*map(repr, self.values[row].tolist()), *label])


def load_clinical() -> ClinicalTable:
    """The whole table, in the package's order."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    return ClinicalTable(
        tuple(str(name).replace(" ", "_") for name in found.feature_names),
        np.asarray(found.data, dtype=np.float64),
        np.asarray(found.target, dtype=np.int64),
        tuple(map(str, found.target_names)),
    )
