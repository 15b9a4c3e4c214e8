"""`mpc-vote health` says whether a process can do its work, and costs little to ask."""

from __future__ import annotations

import asyncio
import datetime as dt
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from mpc_vote import cli
from mpc_vote.pki import pem
from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import Credentials, Identity, Role
from mpc_vote.transport import rpc
from tests.system.service.support import until

HEAVY = ("cryptography", "google.protobuf", "numpy", "pydantic", "torch")


@dataclass
class Process:
    """Something that serves health, of an agent that enrolled."""

    certs: Path
    address: str
    states: dict[str, bool] = field(default_factory=lambda: {"work": True})

    async def check(self) -> Mapping[str, bool]:
        return self.states


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "ca")


@pytest.fixture(params=["tcp", "unix"])
async def process(
    authority: CertificateAuthority, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Process]:
    agents = authority.delegate_agents(tmp_path / "agents")
    key = ec.generate_private_key(ec.SECP256R1())
    certs = tmp_path / "certs"
    certs.mkdir(mode=0o700)
    pem.write(certs / "key.pem", pem.encode_key(key), pem.SECRET)
    pem.write(certs / "cert.pem", agents.certify("alice", key.public_key()), pem.PUBLIC)
    pem.write(certs / "ca.pem", (tmp_path / "ca" / "ca.pem").read_bytes(), pem.PUBLIC)
    listen = "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/health.sock"
    made = Process(certs, listen)
    server = rpc.Server(Credentials.load(certs), listen, [], made.check)
    if request.param == "tcp":
        made.address = f"127.0.0.1:{server.port}"
    await server.start()
    yield made
    await server.stop()


Ask = Callable[..., Coroutine[Any, Any, int]]


@pytest.fixture
def ask(process: Process) -> Ask:
    async def run(*arguments: str) -> int:
        given = ["health", "--address", process.address, "--certs", str(process.certs)]
        return await asyncio.to_thread(cli.main, [*given, *arguments])

    return run


async def test_the_answer_follows_the_state(
    process: Process, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    async def says(code: int) -> bool:
        return await ask() == code

    await until(lambda: says(0), "it serves")
    assert "SERVING\n" in capsys.readouterr().out
    process.states["work"] = False
    await until(lambda: says(1), "it does not serve")
    assert f"{process.address} answers NOT_SERVING" in capsys.readouterr().err


async def test_it_knows_itself_and_nobody_else(
    process: Process, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serves() -> bool:
        return await ask("--server", "agent/alice") == 0

    await until(serves, "it serves")
    capsys.readouterr()
    for other in ("agent/bob", "party/alice"):
        assert await ask("--server", other) == 1
        assert "does not answer: unavailable" in capsys.readouterr().err
    assert await ask("--server", "alice") == 1
    assert "'alice' is not role/name" in capsys.readouterr().err


async def test_another_service_is_unknown(
    process: Process, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await ask("--service", "mpcvote.v1.Nothing" + "x" * 200) == 1
    assert "not found" in capsys.readouterr().err


async def test_a_party_asks_a_dealer(
    authority: CertificateAuthority, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    party, dealer = Identity(Role.PARTY, "party-0"), Identity(Role.DEALER, "dealer")
    authority.issue(party, tmp_path / "party")
    authority.issue(dealer, tmp_path / "dealer", hosts=["localhost"])
    made = Process(tmp_path / "dealer", "")
    server = rpc.Server(Credentials.load(made.certs), "127.0.0.1:0", [], made.check)
    await server.start()
    address = f"127.0.0.1:{server.port}"

    def asked(certs: str, *more: str) -> Callable[[], Coroutine[Any, Any, bool]]:
        given = ["health", "--certs", str(tmp_path / certs), "--address", address, *more]

        async def serves() -> bool:
            return await asyncio.to_thread(cli.main, given) == 0

        return serves

    await until(asked("party", "--server", "dealer/dealer"), "the dealer serves the party")
    await until(asked("dealer"), "the dealer serves itself")
    assert not await asked("party")(), "a party that listens nowhere"
    await server.stop()


def test_nobody_there_is_told(tmp_path: Path, authority: CertificateAuthority) -> None:
    authority.issue(Identity(Role.PARTY, "party-0"), tmp_path / "party")
    code = cli.main(
        ["health", "--certs", str(tmp_path / "party"), "--address", f"unix:{tmp_path}/none"]
    )
    assert code == 1
    missing = ["health", "--certs", str(tmp_path / "nowhere"), "--address", "127.0.0.1:1"]
    assert cli.main(missing) == 1


async def test_it_imports_little(process: Process) -> None:
    """Containers ask every few seconds: everything heavy would cost more than the work itself."""
    script = (
        "import sys\nfrom mpc_vote import cli\ncode = cli.main(sys.argv[1:])\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)))\nsys.exit(code)"
    )

    def run() -> subprocess.CompletedProcess[str]:
        given = ["health", "--certs", str(process.certs), "--address", process.address]
        return subprocess.run(
            [sys.executable, "-c", script, *given], capture_output=True, text=True, check=False
        )

    async def serves() -> bool:
        asked = await asyncio.to_thread(run)
        return asked.returncode == 0 and asked.stdout.splitlines() == ["SERVING", "[]"]

    await until(serves, "it serves, and nothing heavy is imported")


@pytest.mark.parametrize(("left", "warns"), [(40, False), (10, True)])
async def test_a_certificate_that_ends_soon_is_told_of(
    authority: CertificateAuthority,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    left: int,
    warns: bool,
) -> None:
    start = dt.datetime.now(dt.UTC) - dt.timedelta(days=365 - left)
    authority.issue(Identity(Role.DEALER, "dealer"), tmp_path / "dealer", valid_from=start)
    made = Process(tmp_path / "dealer", "")
    server = rpc.Server(Credentials.load(made.certs), "127.0.0.1:0", [], made.check)
    await server.start()
    given = ["health", "--certs", str(made.certs), "--address", f"127.0.0.1:{server.port}"]

    async def serves() -> bool:
        return await asyncio.to_thread(cli.main, given) == 0

    await until(serves, "the dealer serves")
    ends = f"{Credentials.load(made.certs).not_after:%Y-%m-%d %H:%M} UTC: renew it"
    assert (ends in capsys.readouterr().err) is warns
    await server.stop()
