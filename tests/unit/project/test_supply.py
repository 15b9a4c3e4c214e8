"""What the project is built from: pinned, hashed, and asked about."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
# What the image runs; the rest measures, and is for developers.
IN_THE_IMAGE = ("cli", "server", "agent", "crypten")
DEPLOYING = (ROOT / "docs" / "deploy.md").read_text()
LOCKS = ("requirements.lock", "requirements-dev.lock", "torch.lock")
BAD, WANTED = ("jinja2", "2.4.1"), ("wanted", "1.0")


def test_every_requirement_is_pinned_to_one_version_and_hashed() -> None:
    """pip takes no file that is not listed: no version is open, none is without a hash."""
    for lock in LOCKS:
        text = re.sub(r"^#.*\n", "", (ROOT / lock).read_text(), flags=re.MULTILINE)
        entries = text.replace("\\\n", " ").splitlines()
        assert entries
        for entry in entries:
            assert re.fullmatch(r"[\w.-]+==[\w.]+( +--hash=sha256:[0-9a-f]{64})+", entry), entry


def test_the_locks_have_all_that_the_project_declares() -> None:
    """A dependency that is declared but not locked would be missing after `make setup`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    runs, torch = _names("requirements.lock"), _names("torch.lock")
    roles = [*project["dependencies"], *(n for e in IN_THE_IMAGE for n in extras[e])]
    assert _declared(roles) <= runs | torch
    assert _declared(n for names in extras.values() for n in names) <= (
        runs | torch | _names("requirements-dev.lock")
    )
    assert not runs & _names("requirements-dev.lock")


def test_crypten_is_locked_and_named_by_no_extra() -> None:
    """pip can't install what its metadata ask for, so an extra that named it could not be had."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    assert "crypten" not in _declared([*project["dependencies"], *(n for e in extras for n in e)])
    assert f"pip install --no-deps {_pinned('requirements.lock', 'crypten')}" in DEPLOYING


def test_the_declared_bounds_admit_the_stubs_and_what_is_locked() -> None:
    """Stubs refuse runtimes older than what made them; the newest that is tested must fit too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (n for names in project["optional-dependencies"].values() for n in names)
    bounds = [Requirement(name) for name in (*project["dependencies"], *extras)]
    for bound in bounds:
        for lock in LOCKS:
            if pinned := _pinned(lock, _normal(bound.name)):
                version = pinned.partition("==")[2]
                assert bound.specifier.contains(version), (str(bound), pinned)
    least = {_normal(b.name): str(b.specifier) for b in bounds[: len(project["dependencies"])]}
    stub = ROOT / "mpc_vote/proto/mpcvote/v1/label_pb2"
    made = re.search(r"Protobuf Python Version: (\S+)", stub.with_suffix(".py").read_text())
    by = re.search(r"VERSION = '(.+)'", Path(f"{stub}_grpc.py").read_text())
    assert made is not None and f">={made[1]}" in least["protobuf"]
    assert by is not None and least["grpcio"] == f">={by[1]}"


@pytest.fixture
def vulnerabilities() -> Iterator[tuple[str, set[tuple[str, str]]]]:
    """A stand-in for the service that pip-audit asks, and the releases that it calls bad."""
    bad: set[tuple[str, str]] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            package = query["package"]
            known = (package["name"].lower(), query["version"]) in bad
            ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "9.9"}]}]
            finding = {
                "id": "PYSEC-0000-1",
                "summary": "a hole",
                "affected": [{"package": package, "ranges": ranges}],
            }
            body = json.dumps({"vulns": [finding]} if known else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/query", bad
        server.shutdown()


def test_a_known_vulnerability_fails_the_check(
    vulnerabilities: tuple[str, set[tuple[str, str]]], tmp_path: Path
) -> None:
    """`make check` ends red, naming the package and the version that mends it."""
    url, bad = vulnerabilities
    bad |= {BAD, WANTED}
    done = _audit(tmp_path, url)
    assert done.returncode == 1
    assert "wanted 1.0: PYSEC-0000-1, fixed in 9.9" in done.stderr


def test_a_clean_audit_says_how_many_it_asked_about(
    vulnerabilities: tuple[str, set[tuple[str, str]]], tmp_path: Path
) -> None:
    url, bad = vulnerabilities
    bad.add(BAD)
    done = _audit(tmp_path, url)
    assert done.returncode == 0, done.stderr
    assert "1 packages audited" in done.stdout


@pytest.mark.parametrize("answers", [True, False], ids=["knows nothing", "is not there"])
def test_without_a_service_that_knows_anything_the_check_says_so(
    vulnerabilities: tuple[str, set[tuple[str, str]]], tmp_path: Path, answers: bool
) -> None:
    """Silence is no verdict: a mirror without vulnerabilities does not look like a clean audit."""
    url, _ = vulnerabilities
    done = _audit(tmp_path, url if answers else "http://127.0.0.1:1/query")
    assert done.returncode == 0
    assert "NOTHING WAS AUDITED" in done.stdout
    assert "packages audited" not in done.stdout


def _audit(folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    name, version = WANTED
    lock = folder / "some.lock"
    lock.write_text(f"{name}=={version} --hash=sha256:{'0' * 64}\n")
    command = [sys.executable, str(ROOT / "tools/audit.py"), str(lock), "--osv-url", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def _names(lock: str) -> set[str]:
    return {_normal(n) for n in re.findall(r"^([\w.-]+)==", (ROOT / lock).read_text(), re.M)}


def _pinned(lock: str, name: str) -> str | None:
    """The line of a package in a lock, up to its hashes."""
    lines = re.findall(r"^([\w.-]+==[\w.]+)", (ROOT / lock).read_text(), re.M)
    return next((line for line in lines if _normal(line.partition("==")[0]) == name), None)


def _declared(requirements: Iterable[str]) -> set[str]:
    """The packages that are named, but for this one."""
    return {_normal(Requirement(text).name) for text in requirements} - {"mpc-vote"}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
