"""A model that fails on the example rows is told with its file, and with what it was given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import skops.io
from sklearn.linear_model import LogisticRegression

from mpc_vote.learning.voters import VoterOptions, make_voter
from tests.unit.learning.voters.tasks import TABLE


def test_a_model_of_other_columns_is_told_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "m.skops"
    model = LogisticRegression().fit(np.eye(5), [0, 1, 0, 1, 1])
    skops.io.dump(model, path)
    why = (
        rf"the voter sklearn with the model {path} failed on 2 example rows: X has \d+ features, "
        r".* is expecting 5 .*\. It was given the task's features, an array; with --inputs raw"
    )
    with pytest.raises(ValueError, match=why):
        make_voter("sklearn", None, VoterOptions(task=TABLE, model=str(path)))
