"""A federation that counts with the table engine has torch in no process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mpc_vote.argmax.registry import PAIRWISE, TABLE
from mpc_vote.testbed.cluster import Cluster
from tests.system.service.support import FARMS, SECONDS


def _with_torch(cluster: Cluster) -> list[str]:
    """The processes that have loaded torch."""
    maps = {
        name: Path(f"/proc/{child.process.pid}/maps").read_text()
        for name, child in cluster.children.items()
    }
    return sorted(name for name, loaded in maps.items() if "libtorch" in loaded)


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has loaded is read from /proc")
async def test_torch_is_loaded_by_parties_alone_and_for_crypten_alone(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2, FARMS.write(tmp_path / "private"), {})
    cluster.issue()
    queries = FARMS.queries(10)
    try:
        cluster.start()
        await cluster.ready(2 * SECONDS)
        async with cluster.client() as client:
            light = await client.label(queries, FARMS.plan(engine=TABLE))
            assert _with_torch(cluster) == []
            heavy = await client.label(queries, FARMS.plan(engine=PAIRWISE))
            assert _with_torch(cluster) == ["party-0", "party-1"]
    finally:
        cluster.stop()
    for result in (light, heavy):
        assert (result.labels == FARMS.winners(queries)).all()
