"""An agent's voter: what it refuses before it votes at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agent_node.settings import AgentSettings
from agent_node.voter import prepare
from mpc_vote import config, wire
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import save_part


@pytest.mark.parametrize("size", [2e12, -1e19])
def test_private_points_that_no_distance_has_room_for_are_refused(
    size: float, tmp_path: Path
) -> None:
    points = np.full((3, 2), -wire.MAX_SIZE, np.float32)
    path = tmp_path / "part.npz"
    settings = config.load(
        AgentSettings,
        [
            f"--certs={tmp_path}",
            f"--data={path}",
            f"--data-dir={tmp_path}",
            "--coordinator=localhost:1",
            "--parties=a=localhost:2,b=localhost:3",
        ],
    )
    save_part(path, Dataset("part", points, np.array([0, 1, 1]), 2))
    prepare(settings, "agent-1")
    points[2, 1] = size
    save_part(path, Dataset("part", points, np.array([0, 1, 1]), 2))
    with pytest.raises(ValueError, match="numbers beyond 1e"):
        prepare(settings, "agent-1")
