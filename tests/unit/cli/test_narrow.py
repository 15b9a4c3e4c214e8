"""On a terminal of 80 columns: no id is cut or broken, and no figure is."""

from __future__ import annotations

import datetime as dt
import io

from rich.console import Console

from mpc_vote.cli import model, rounds
from mpc_vote.proto.mpcvote.v1 import common_pb2, label_pb2
from mpc_vote.results import Model

ID = "0123456789abcdef0123456789abcdef"


def narrow() -> Console:
    return Console(file=io.StringIO(), width=80, highlight=False, markup=False)


def lines(out: Console) -> list[str]:
    assert isinstance(out.file, io.StringIO)
    found = out.file.getvalue().splitlines()
    assert all(len(line) <= 80 for line in found), found
    return found


def test_a_round_has_its_id_whole_and_its_figures_in_one_line() -> None:
    cost = common_pb2.Cost(
        epsilon_agent=1234.5,
        epsilon_instance=2.664,
        labels_epsilon_agent=900,
        labels_epsilon_instance=2,
        delta=1e-5,
    )
    one = label_pb2.RoundSummary(
        round_id=ID,
        state=label_pb2.ROUND_STATE_COMPLETE,
        queries=1,
        sigma=12.5,
        cost=cost,
        task="heart-failure",
    )
    out = narrow()
    rounds.show(out, one)
    head, figures, by_labels = lines(out)
    assert head.startswith(f"{ID}  complete, ") and head.endswith("task heart-failure")
    assert figures.strip() == (
        "1 query, sigma 12.5: epsilon 1235 agent, 2.664 instance level, delta 1e-05"
    )
    assert by_labels.strip() == "by labels 900 agent level, 2 instance level"


def test_a_round_that_failed_says_why() -> None:
    failed = label_pb2.RoundSummary(
        round_id=ID, state=label_pb2.ROUND_STATE_FAILED, queries=60, reason="why " * 40
    )
    out = narrow()
    rounds.show(out, failed)
    assert lines(out)[0].startswith(f"{ID}  failed, ")
    assert "epsilon" not in " ".join(lines(out))


def test_a_models_metrics_are_whole_words_below_its_figures() -> None:
    metrics = {f"{what}_{name}": 0.98765 for what in ("agreement", "weight") for name in NAMES}
    trained = Model(
        version=12,
        task="heart-failure",
        round_ids=(ID,),
        labels=12_000,
        unlabelled=30_000,
        classes=3,
        student="chooser",
        epsilon_agent=1234.5,
        epsilon_instance=2.664,
        delta=1e-5,
        metrics=metrics,
        trained=dt.datetime.fromtimestamp(0, dt.UTC),
        sha256=b"",
        labels_epsilon_agent=1000.0,
        labels_epsilon_instance=2.1,
    )
    out = narrow()
    model.describe(out, [trained])
    _, _, figures, *told = lines(out)
    assert figures.split() == ["12", "heart-failure", "12000", "30000", "1235", "2.664", "1e-05"]
    words = " ".join(told).split()
    assert words[:5] == ["version", "12,", "by", "labels:", "epsilon"]
    assert [word for word in words if "_" in word] == sorted(metrics)


NAMES = ("centres", "linear", "network", "propagation")
