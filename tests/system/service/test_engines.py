"""The engine as a user chooses it: `label --engine`, for rounds of both kinds."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from mpc_vote.argmax.registry import ENGINES, PAIRWISE, EngineKind
from mpc_vote.pki.identity import Role
from mpc_vote.testbed.cluster import Cluster
from mpc_vote.voting.ballots import KNN_COUNT
from tests.system.service.support import FARMS, QUIET, SECONDS, Group, Service, command


@pytest.mark.parametrize("verified", ["verified", "no-verified"])
@pytest.mark.parametrize("engine", list(ENGINES), ids=lambda engine: engine.name)
def test_label_counts_with_the_engine_that_it_is_told(
    service: Service, clinics: Group, engine: EngineKind, verified: str, tmp_path: Path
) -> None:
    queries = clinics.queries(60, seed=engine.code)
    # The committee's noise is never nothing, and decides ties.
    ranked = np.sort(clinics.totals(queries, KNN_COUNT), axis=1)
    queries = queries[ranked[:, -1] > ranked[:, -2]][:30]
    np.save(tmp_path / "q.npy", queries)
    done = command(
        "label",
        f"--coordinator={service.cluster.coordinator_address}",
        f"--certs={service.certs(Role.CLIENT, 'chooser')}",
        f"--queries={tmp_path / 'q.npy'}",
        f"--out={tmp_path / 'labels.npy'}",
        f"--classes={clinics.classes}",
        f"--sigma={0.1 if verified == 'verified' else QUIET}",
        f"--engine={engine.name}",
        f"--{verified}",
        "--yes",
        "--json=-",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["engine"] == engine.name
    assert f"{engine.name}, " in done.stderr
    assert ("not verified" in done.stderr) is (verified == "no-verified")
    assert (np.load(tmp_path / "labels.npy") == clinics.winners(queries)).all()


def test_an_unknown_engine_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    done = command("label", f"--certs={tmp_path}", "--queries=q.npy", "--engine=magic")
    assert done.returncode != 0
    assert f"--engine: choose one of {', '.join(ENGINES.names())} (not 'magic')" in done.stderr


class _WithoutCrypten(Cluster):
    """A federation in which the parties lack CrypTen."""

    def _program(self, label: str) -> list[str]:
        if not label.startswith("party"):
            return super()._program(label)
        lacking = "import sys; sys.modules['crypten'] = None; from mpc_vote.cli import main; main()"
        return [sys.executable, "-c", lacking]


def test_a_party_without_crypten_refuses_its_engines_and_nothing_is_spent(tmp_path: Path) -> None:
    cluster = _WithoutCrypten(tmp_path, 2, FARMS.write(tmp_path / "private"), {})
    cluster.issue()
    np.save(tmp_path / "q.npy", FARMS.queries(5))
    asked = (
        "label",
        f"--coordinator={cluster.coordinator_address}",
        f"--certs={cluster.client_certs}",
        f"--queries={tmp_path / 'q.npy'}",
        f"--out={tmp_path / 'labels.npy'}",
        "--classes=3",
        f"--sigma={QUIET}",
    )
    try:
        cluster.start()
        asyncio.run(cluster.ready(2 * SECONDS))
        refused = command(*asked, f"--engine={PAIRWISE.name}")
        assert refused.returncode == 1
        assert "ENGINE_MISSING" in refused.stderr
        assert "has no crypten, which this engine needs. Ask for the engine table" in refused.stderr
        assert "Nothing was spent" in refused.stderr
        done = command(*asked)
        assert done.returncode == 0, done.stderr
    finally:
        cluster.stop()
