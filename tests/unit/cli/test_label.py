"""What is shown beside labels is what the answer says."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from rich.console import Console

from mpc_vote.cli.label import _show, figures
from mpc_vote.client import LabelResult
from mpc_vote.proto.mpcvote.v1 import common_pb2
from mpc_vote.results import Cost


def test_an_answer_without_a_spec_names_no_engine() -> None:
    """As one to a request that was asked before."""
    cost = Cost.from_message(common_pb2.Cost(mpc_rounds=4))
    result = LabelResult("r", np.zeros(1, np.int64), cost, 3, {}, (), None)
    shown = io.StringIO()
    _show(Console(file=shown, width=200), result, Path("labels.npy"))
    assert "secure argmax          4 rounds, 0 bytes" in shown.getvalue()
    assert figures(result)["engine"] is None
