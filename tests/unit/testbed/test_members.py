"""Who takes part in a cluster, as one writes it in a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mpc_vote.app.process import CommandError
from mpc_vote.testbed.cluster import Cluster
from mpc_vote.testbed.members import settings_of

TASK = Path("/somewhere/task.toml")


def test_files_settings_and_functions_become_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").touch()
    (tmp_path / "pictures").mkdir()
    settings, functions = settings_of(
        {
            "ann": "a.csv",
            "bob": Path("pictures"),
            "cleo": {"data": "a.csv", "k": 5, "budget_instance": 8},
            "dora": {"voter": "http", "model": "http://127.0.0.1:1/v2/models/m"},
            "eve": len,
        },
        TASK,
    )
    whole = str(tmp_path / "a.csv")
    assert settings["ann"] == {"task": str(TASK), "data": whole}
    assert settings["bob"]["data"] == str(tmp_path / "pictures")
    assert settings["cleo"] == {
        "task": str(TASK), "data": whole, "k": "5", "budget-instance": "8",
    }  # fmt: skip
    assert "data" not in settings["dora"]
    assert functions == {"eve": len} and "eve" not in settings


@pytest.mark.parametrize(
    ("member", "words"),
    [("gone.csv", "agent ann: there is no .*gone.csv"), (7, "agent ann must be a file")],
)
def test_what_can_be_no_agent_is_refused(member: Any, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        settings_of({"ann": member}, TASK)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({}, "needs agents, and none is given"),
        (["a.csv", "b.csv"], "agents are given by name, .*not as a list"),
        (
            {"ann": "a.csv", "bob": {"data": "b.csv", "min_quorum": 3}},
            "agent bob refuses rounds of fewer than 3 agents, and there are 2: lower its min_quo",
        ),
    ],
)
def test_agents_that_could_never_vote_are_refused_at_once_and_no_folder_is_made(
    members: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(CommandError, match=words):
        Cluster.of("task.toml", members)
    assert list(tmp_path.iterdir()) == []
