"""The containers as a newcomer runs them: built and run for real, on whatever engine is here.

Marked `container`; `make test-containers` runs them, and fails if there is no engine.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from mpc_vote.data.demo import demo_partition
from mpc_vote.testbed.cluster import free_ports

pytestmark = [pytest.mark.container, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
ROLES = ("dealer", "party-0", "party-1", "party-2", "coordinator", "egress", "agent")
GIB = 1 << 30


class Compose:
    """One project of containers, apart from any other on this engine."""

    def __init__(self, name: str, *overlays: str) -> None:
        self.port = free_ports(1)[0]
        files = [part for file in ("docker-compose.yml", *overlays) for part in ("-f", file)]
        self._command = ["docker", "compose", "-p", name, *files]
        self._environment = {**os.environ, "MPC_VOTE_PORT": str(self.port)}

    def run(
        self, *arguments: str, check: bool = True, seconds: float = 400
    ) -> subprocess.CompletedProcess[str]:
        """`docker compose ...`."""
        return self.command([*self._command, *arguments], check, seconds)

    def docker(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`docker ...`."""
        return self.command(["docker", *arguments], check, 60)

    def command(
        self, command: list[str], check: bool, seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """Any command, in the project's folder."""
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done

    def containers(self, service: str) -> list[dict[str, Any]]:
        """What the engine says of a service's containers."""
        ids = self.run("ps", "-a", "-q", service).stdout.split()
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", *ids).stdout)
        return found

    def reaches(self, service: str, target: str) -> bool:
        """Whether a container can open a connection to another; unknown names can't."""
        host, _, port = target.rpartition(":")
        code = f"import socket; socket.create_connection(({host!r}, {port}), 3)"
        return self.run("exec", "-T", service, "python", "-c", code, check=False).returncode == 0

    def export(self, directory: Path) -> Path:
        """The client's certificate."""
        directory.mkdir(mode=0o700)
        archive = subprocess.run(
            [*self._command, "run", "--rm", "-T", "export"],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        with tarfile.open(fileobj=BytesIO(archive)) as tar:
            for name in ("ca.pem", "cert.pem", "key.pem"):
                member = tar.extractfile(f"./{name}")
                assert member is not None
                (directory / name).touch(mode=0o600)
                (directory / name).write_bytes(member.read())
        return directory


@pytest.fixture(scope="session", autouse=True)
def image() -> None:
    """The image, built once."""
    Compose("mpcvote-build").run("build", seconds=900)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Compose, Path]]:
    """The service with twenty agents, and a client's certificate from it."""
    compose = Compose("mpcvote-service")
    try:
        compose.run("--profile", "service", "up", "-d", "--scale", "agent=20")
        certs = compose.export(tmp_path_factory.mktemp("client") / "certs")
        try:
            _until(
                lambda: len(_status(compose, certs)["agents"]) == 20, "twenty agents attend", 300
            )
        except AssertionError as error:
            seen = compose.run("ps", "-a").stdout + compose.run("logs", "--tail=5").stdout
            raise AssertionError(f"{error}; {_client(compose, certs, 'status')}\n{seen}") from error
        yield compose, certs
    finally:
        compose.run("--profile", "*", "down", "-v", check=False)


def test_up_ends_with_the_client_and_its_table() -> None:
    compose = Compose("mpcvote-demo")
    try:
        done = compose.run("up", "--no-color", "--exit-code-from", "client")
        text = done.stdout
        assert "8 agents, 3 parties" in text
        accuracy = re.search(r"label accuracy\s+│ ([\d.]+) % of 500", text)
        assert accuracy is not None
        assert float(accuracy[1]) > 88
        for words in ("best agent alone", "epsilon, instance level", "round trip of parties"):
            assert words in text
        # And again, on what the first time left: keys and identities stay.
        again = compose.run("up", "--no-color", "--exit-code-from", "client")
        assert "8 agents, 3 parties" in again.stdout
    finally:
        compose.run("down", "-v", check=False)


def test_a_client_that_fails_gives_its_exit_code() -> None:
    compose = Compose("mpcvote-fails", "tests/system/containers/failing-client.yml")
    try:
        done = compose.run("up", "--exit-code-from", "client", check=False)
        assert done.returncode == 2
        assert "no-such-flag" in done.stdout + done.stderr
    finally:
        compose.run("down", "-v", check=False)


def test_agents_scale_with_data_and_identities_of_their_own(service: tuple[Compose, Path]) -> None:
    compose, certs = service
    names = {agent["agent"] for agent in _status(compose, certs)["agents"]}
    assert names == {f"agent-{number}" for number in range(20)}
    parts = [part.x.tobytes() for part in demo_partition().private[:20]]
    assert len(set(parts)) == 20


def test_a_user_labels_a_batch_of_their_own(service: tuple[Compose, Path], tmp_path: Path) -> None:
    compose, certs = service
    labels = _label(compose, certs, tmp_path)
    assert np.mean(labels == demo_partition().public.y[:100]) > 0.8


@pytest.mark.parametrize("role", ROLES)
def test_containers_are_confined(service: tuple[Compose, Path], role: str) -> None:
    compose, _ = service
    for container in compose.containers(role):
        host = container["HostConfig"]
        assert container["Config"]["User"] == "10001:10001"
        assert host["ReadonlyRootfs"] and host["Init"]
        assert host["CapDrop"] == ["ALL"] and not host["CapAdd"] and not host["Privileged"]
        assert "no-new-privileges:true" in host["SecurityOpt"]
        assert 0 < host["Memory"] <= GIB
        secret = re.compile(r"PRIVATE KEY|token=|password", re.IGNORECASE)
        assert not secret.search(" ".join(container["Config"]["Env"]))


def test_each_key_is_mounted_by_its_owner_alone(service: tuple[Compose, Path]) -> None:
    compose, _ = service
    owners: dict[str, set[str]] = {}
    for role in ROLES:
        for container in compose.containers(role):
            for mount in container["Mounts"]:
                if "_pki-" in mount.get("Name", "") and not mount["Name"].endswith("public"):
                    owners.setdefault(mount["Name"].split("_pki-")[1], set()).add(role)
    assert owners == {
        "dealer": {"dealer"},
        "party-0": {"party-0"},
        "party-1": {"party-1"},
        "party-2": {"party-2"},
        "coordinator": {"coordinator"},
        "agents": {"coordinator"},
    }


def test_the_image_holds_no_secret_and_no_compiler() -> None:
    compose = Compose("mpcvote-build")
    history = compose.docker("history", "--no-trunc", "mpc-vote:local").stdout
    assert "PRIVATE KEY" not in history
    code = (
        "import pathlib, shutil, sys; "
        "keys = [str(p) for p in pathlib.Path('/pki').rglob('*') if p.is_file()]; "
        "found = [t for t in ('gcc', 'cc', 'make') if shutil.which(t)]; "
        "sys.exit(str(keys + found) if keys or found else 0)"
    )
    entry = ("--entrypoint", "python", "mpc-vote:local", "-c", code)
    assert compose.docker("run", "--rm", *entry).returncode == 0


def test_the_bill_of_materials_lists_what_is_installed() -> None:
    """All of it, wherever it lies on the disk, and nothing else; each with version and licence."""
    compose = Compose("mpcvote-build")

    def inside(*command: str) -> str:
        entry = ("--entrypoint", command[0], "mpc-vote:local", *command[1:])
        return compose.docker("run", "--rm", "--user", "root", *entry).stdout

    text = compose.command(["make", "-s", "sbom"], True, 60).stdout
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    components = json.loads(text)["components"]
    assert all(each["version"] and each["licenses"] for each in components)
    listed = {kind: set[tuple[str, str]]() for kind in ("pypi", "deb", "generic")}
    for each in components:
        kind = re.split("[:/]", each["purl"])[1]
        listed[kind].add((each["name"], each["version"]))

    # What a package carries inside itself is that package's affair.
    metadata = r"find / -xdev -path '*.dist-info/METADATA' -not -path '*/_vendor/*'"
    fields = inside("sh", "-c", metadata + r" -exec grep -hm2 -E '^(Name|Version): ' {} \;")
    installed = re.findall(r"Name: (.+)\nVersion: (.+)", fields)
    assert listed["pypi"] == {(re.sub("[-_.]+", "-", n).lower(), v) for n, v in installed}
    debian = inside("dpkg-query", "-W", "-f", "${Package} ${Version}\n").splitlines()
    assert listed["deb"] == {(name, version) for name, version in map(str.split, debian)}
    python = inside("python", "-c", "import platform; print(platform.python_version())")
    assert listed["generic"] == {("python", python.strip())}


def test_agents_have_no_network_at_all(service: tuple[Compose, Path]) -> None:
    compose, _ = service
    for container in compose.containers("agent"):
        assert container["HostConfig"]["NetworkMode"] == "none"
        assert list(container["NetworkSettings"]["Networks"]) == ["none"]
    for target in ("coordinator:7000", "party-0:7100", "dealer:7200"):
        assert not compose.reaches("agent", target)


@pytest.mark.parametrize(
    ("service_name", "allowed", "forbidden"),
    [
        ("dealer", (), ("coordinator:7000", "coordinator:7001", "egress:1")),
        ("party-0", ("party-1:7150", "dealer:7200"), ()),
        ("coordinator", ("party-0:7100", "party-2:7100"), ("dealer:7200",)),
        ("egress", ("coordinator:7000", "party-1:7100"), ("dealer:7200",)),
    ],
)
def test_roles_see_only_whom_they_must(
    service: tuple[Compose, Path],
    service_name: str,
    allowed: tuple[str, ...],
    forbidden: tuple[str, ...],
) -> None:
    compose, _ = service
    for target in allowed:
        assert compose.reaches(service_name, target), target
    for target in forbidden:
        assert not compose.reaches(service_name, target), target


def test_only_the_clients_port_is_published(service: tuple[Compose, Path]) -> None:
    compose, _ = service
    published = {
        (role, port, binding["HostIp"])
        for role in ROLES
        for container in compose.containers(role)
        for port, bindings in (container["NetworkSettings"]["Ports"] or {}).items()
        for binding in bindings or ()
    }
    assert published == {("coordinator", "7000/tcp", "127.0.0.1")}


def test_killed_agents_are_done_without_and_come_back(
    service: tuple[Compose, Path], tmp_path: Path
) -> None:
    compose, certs = service
    for number in (19, 20):
        compose.docker("kill", f"mpcvote-service-agent-{number}")
    _until(lambda: len(_status(compose, certs)["agents"]) == 18, "two agents are gone")
    assert _label(compose, certs, tmp_path, "--quorum", "18").size == 100
    compose.run("--profile", "service", "up", "-d", "--scale", "agent=20")
    _until(lambda: len(_status(compose, certs)["agents"]) == 20, "they are back")


def test_a_stopped_party_fails_requests_by_name_until_it_is_back(
    service: tuple[Compose, Path], tmp_path: Path
) -> None:
    compose, certs = service
    compose.run("stop", "party-1")
    _until(lambda: _status(compose, certs)["unready_parties"] != [], "the loss is noticed")
    failed = _try_label(compose, certs, tmp_path)
    assert failed.returncode == 1
    assert "party-1" in failed.stderr
    assert "Traceback" not in failed.stderr
    compose.run("start", "party-1")
    _until(lambda: _status(compose, certs)["unready_parties"] == [], "it is back")
    assert _label(compose, certs, tmp_path).size == 100


def test_a_restarted_coordinator_is_found_again(
    service: tuple[Compose, Path], tmp_path: Path
) -> None:
    compose, certs = service
    spent = _status(compose, certs)["total_epsilon_instance"]
    compose.run("restart", "coordinator")
    _until(lambda: len(_status(compose, certs)["agents"]) == 20, "all agents attend again")
    assert _status(compose, certs)["total_epsilon_instance"] == spent
    assert _label(compose, certs, tmp_path).size == 100


def test_far_parties_show_in_the_table() -> None:
    compose = Compose("mpcvote-wan", "docker/wan.yml")
    try:
        text = compose.run("up", "--no-color", "--exit-code-from", "client").stdout
        trip = re.search(r"round trip of parties\s+│ ([\d.]+) ms", text)
        assert trip is not None
        assert 40 <= float(trip[1]) < 120
        argmax = re.search(r"secure argmax\s+│ table, (\d+) rounds", text)
        assert argmax is not None
        # The row may go over several lines; the number of bytes has no point.
        seconds = re.search(r"\d\.\d", text[argmax.end() : trip.start()])
        assert seconds is not None, text[argmax.start() : trip.end()]
    finally:
        compose.run("down", "-v", check=False)


def _client(compose: Compose, certs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mpc_vote.cli", *arguments, "--certs", str(certs)]
    return subprocess.run(
        [*command, "--coordinator", f"localhost:{compose.port}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _status(compose: Compose, certs: Path) -> dict[str, Any]:
    done = _client(compose, certs, "status", "--json", "-")
    empty: dict[str, Any] = {"agents": [], "unready_parties": ["unknown"]}
    return json.loads(done.stdout) if done.returncode == 0 else empty


def _try_label(
    compose: Compose, certs: Path, folder: Path, *more: str
) -> subprocess.CompletedProcess[str]:
    np.save(folder / "q.npy", demo_partition().public.x[:100])
    files = ("--queries", str(folder / "q.npy"), "--out", str(folder / "labels.npy"))
    # The same batch in several tests, each time for its price.
    plan = ("--classes", "10", "--sigma", "36", "--yes", "--overwrite")
    return _client(compose, certs, "label", *files, *plan, *more)


def _label(compose: Compose, certs: Path, folder: Path, *more: str) -> Any:
    done = _try_label(compose, certs, folder, *more)
    assert done.returncode == 0, done.stderr
    return np.load(folder / "labels.npy")


def _until(test: Callable[[], bool], what: str, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not test():
        assert time.monotonic() < deadline, f"this did not happen: {what}"
        time.sleep(1)
