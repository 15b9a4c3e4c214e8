"""How commands run as processes. Invariant: what a role holds in memory is in no core file."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from mpc_vote.app import process
from mpc_vote.app.config import Settings
from mpc_vote.app.process import LineFormatter
from mpc_vote.testbed.cluster import Cluster
from tests.system.service.support import until

ALLOW = """
import os, resource, sys
os.chdir(sys.argv[1])
most = resource.getrlimit(resource.RLIMIT_CORE)[1]
if most == 0:
    sys.exit()
resource.setrlimit(resource.RLIMIT_CORE, (most, most))
"""
FORBID = """
from mpc_vote.app import process
process.leave_no_core()
"""
DIE = """
os.kill(os.getpid(), int(sys.argv[2]))
"""


def dumps(code: str, number: int, folder: Path) -> bool:
    """Whether the kernel made a core of a process that allows it, runs the code and then dies."""
    arguments = [sys.executable, "-c", ALLOW + code + DIE, str(folder), str(number)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    # Not by `subprocess`, which does not tell about the core.
    child = os.posix_spawn(sys.executable, arguments, environment)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        pytest.skip("this user may not allow core files")
    assert os.WTERMSIG(status) == number
    return os.WCOREDUMP(status)


class Nothing(Settings):
    """A command that takes nothing."""

    command: ClassVar[str] = "nothing"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("no space to speak of"), "error: no space to speak of\n"),
        (OSError(28, "No space left on device"), "error: No space left on device\n"),
        (OSError(2, "No such file", "ledger.db"), "error: can't use ledger.db: No such file\n"),
        (OSError(), "error: OSError\n"),
    ],
)
def test_what_the_system_says_is_told_with_the_file_if_it_names_one(
    error: OSError, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(_: Nothing) -> None:
        raise error

    assert process.run(Nothing, [], fail) == 1
    assert capsys.readouterr().err == f"mpc-vote nothing: {told}"


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGSEGV, signal.SIGQUIT])
def test_no_core_is_left_where_cores_are_allowed(tmp_path: Path, number: signal.Signals) -> None:
    assert not dumps(FORBID, number, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_core_would_be_left_otherwise(tmp_path: Path) -> None:
    """Else the test above shows nothing."""
    if not dumps("", signal.SIGABRT, tmp_path):
        pytest.skip("this machine writes no core files")


def test_a_role_starts_where_the_system_allows_no_core_at_all(tmp_path: Path) -> None:
    forbidden = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))"
    assert not dumps(forbidden + FORBID, signal.SIGABRT, tmp_path)


async def test_every_role_allows_no_core(tmp_path: Path) -> None:
    """The dealer stands for all: they start by the same function."""
    cluster = Cluster(tmp_path, 2, {})
    cluster.issue()
    cluster.start_dealer()
    child = cluster.children["dealer"]
    try:

        async def serves() -> bool:
            cluster.check()
            return "serves on port" in child.log.read_text()

        await until(serves, "the dealer serves")
        allowed, _ = resource.prlimit(child.process.pid, resource.RLIMIT_CORE)
        assert allowed <= 1 and allowed != resource.RLIM_INFINITY
    finally:
        cluster.stop()


def test_a_record_is_one_line_of_the_log_and_a_traceback_keeps_its_own() -> None:
    formatter = LineFormatter("%(levelname)s %(message)s")
    forged = "gone\nINFO round 1: voted\x1b[2J"
    try:
        raise ValueError("no")
    except ValueError:
        told = sys.exc_info()
    record = logging.LogRecord("", logging.WARNING, "", 0, "not attending: %s", (forged,), told)
    lines = formatter.format(record).splitlines()
    assert lines[0] == r"WARNING not attending: gone\nINFO round 1: voted\x1b[2J"
    assert lines[1].startswith("Traceback") and lines[-1] == "ValueError: no"


FAULTS = """
import resource
from mpc_vote.app import process
{first}
def use():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    # Each below what glibc takes from the kernel apart, all together above what it keeps.
    arrays = [bytearray(100_000) for _ in range(40)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
use()
print(min(use() for _ in range(5)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an allocator of its own")
def test_memory_that_was_given_back_is_used_again_without_faults() -> None:
    def faults(first: str) -> int:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        code = [sys.executable, "-c", FAULTS.format(first=first)]
        return int(subprocess.run(code, env=environment, check=True, capture_output=True).stdout)

    assert faults("") > 500
    assert faults("process.keep_freed_memory()") < 50


def test_calls_that_end_with_their_server_are_no_errors() -> None:
    def let(error: BaseException | None) -> bool:
        raised = None if error is None else (type(error), error, None)
        record = logging.LogRecord("grpc", logging.ERROR, "", 0, "it failed", None, raised)
        return process.no_cancelled_call(record)

    assert not let(asyncio.CancelledError())
    assert let(ValueError()) and let(None)
