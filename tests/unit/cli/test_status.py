"""`mpc-vote status` waits for agents no longer than it is told to."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpc_vote import cli
from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.testbed.cluster import free_ports


def test_a_service_that_never_answers_is_waited_for_so_long_and_then_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca")
    authority.issue(Identity(Role.CLIENT, "me"), tmp_path / "me")
    (port,) = free_ports(1)
    shared = [f"--certs={tmp_path / 'me'}", f"--coordinator=127.0.0.1:{port}"]
    assert cli.main(["status", *shared, "--agents=1", "--patience=0.5"]) == 1
    told = capsys.readouterr().err
    address = f"127.0.0.1:{port}"
    assert f"not ready after 0.5 s: The coordinator at {address} does not answer" in told
    assert cli.main(["status", *shared]) == 1
    assert f"The coordinator at {address} does not answer (connection" in capsys.readouterr().err
