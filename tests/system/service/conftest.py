"""The clusters of real processes that these tests talk to: one that stays whole, one to break."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from mpc_vote.testbed.cluster import Cluster
from tests.system.service.support import CLINICS, FARMS, LABS, Group, Service

_START_SECONDS = 60.0


@contextlib.contextmanager
def _running(
    directory: Path, parties: int, groups: Mapping[str, Group], coordinator: Mapping[str, str]
) -> Iterator[Service]:
    agents: dict[str, dict[str, str]] = {}
    for group in groups.values():
        agents |= group.write(directory / "private")
    cluster = Cluster(directory, parties, agents, coordinator)
    cluster.issue()
    try:
        cluster.start()
        asyncio.run(cluster.ready(_START_SECONDS))
        yield Service(cluster, groups)
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Three parties, and agents of two kinds. Tests leave it as they found it."""
    directory = tmp_path_factory.mktemp("service")
    limits = {"max-open-rounds": "3", "min-sigma": "1e-6", "revoked-agents": "outcast"}
    with _running(directory, 3, {"clinics": CLINICS, "labs": LABS}, limits) as running:
        yield running


@pytest.fixture(scope="session")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Two parties and three agents, for tests that kill them and start them again."""
    directory = tmp_path_factory.mktemp("fragile")
    with _running(directory, 2, {"farms": FARMS}, {}) as running:
        yield running


@pytest.fixture
def clinics() -> Group:
    return CLINICS


@pytest.fixture
def labs() -> Group:
    return LABS


@pytest.fixture
def farms() -> Group:
    return FARMS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    """Shows what the processes said when a test that used them fails."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Service):
                for name, tail in value.tails():
                    report.sections.append((f"end of the log of {name}", tail))
    return report
