"""Runs a page of `docs/tutorials` as its reader would, and compares what is printed.

Blocks `sh` are run in order by one shell, in an empty folder, with real processes; a block `python`
whose first line is a comment with a file's name is written to that file. A block `text` holds lines
that the block before it prints, in their order; `...` stands for anything, and in `text varies`
numbers may be others: what noise decides, and what time it took. Not so in a line that tells an
epsilon, which follows from public settings alone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mpc_vote.testbed.cluster import free_ports

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "tutorials"
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w.-]+\.\w+)\n")
COORDINATOR = "7000"
CLIENTS = ("STATUS", "PLAN", "LABEL", "ROUNDS", "TRAIN", "MODEL")
_NUMBER = re.compile(r"\d[\d,.]*")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    words: str
    text: str


def blocks(page: Path) -> list[Block]:
    """All that are run or compared; others are there to be read."""
    found = [Block(*match) for match in _FENCE.findall(page.read_text())]
    return [block for block in found if block.language in ("sh", "python", "text")]


@dataclass(frozen=True)
class Step:
    """Commands, and what the page says that they print."""

    script: str
    expected: list[tuple[str, bool]]
    """Lines, and whether their numbers may be others."""


def steps(page: Path) -> list[Step]:
    """The page's commands, and those that write its files."""
    made: list[Step] = []
    for block in blocks(page):
        if block.language == "sh":
            made.append(Step(block.text, []))
        elif block.language == "python":
            name = _FILE.match(block.text)
            assert name, f"{page.name}: the first line of a file must be its name:\n{block.text}"
            made.append(Step(f"cat > {name[1]} <<'END OF FILE'\n{block.text}END OF FILE\n", []))
        else:
            varies = block.words.strip() == "varies"
            lines = [line for line in block.text.splitlines() if line.strip()]
            made[-1].expected.extend((line, varies) for line in lines)
    return made


def run(page: Path, folder: Path, seconds: float) -> list[str]:
    """What each step printed; fails where one fails, or where the page takes too long."""
    todo = steps(page)
    work, outputs = folder / "work", folder / "out"
    work.mkdir()
    outputs.mkdir()
    lines = ["set -eu -o pipefail"]
    for number, step in enumerate(todo):
        lines += [f"exec > '{outputs / str(number)}' 2>&1", step.script]
    script = folder / "page.sh"
    ports = _free_ports("\n".join(lines))
    script.write_text(_moved("\n".join(lines), ports))
    process = subprocess.Popen(
        ["bash", str(script)],
        cwd=work,
        env=environment(folder, ports),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code: int | None = process.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        _end(process.pid)
    texts = [path.read_text() for path in sorted(outputs.iterdir(), key=lambda p: int(p.name))]
    if code != 0:
        why = f"it took over {seconds:g} s" if code is None else f"it ended with code {code}"
        raise AssertionError(f"{page.name}: {why} in\n{todo[len(texts) - 1].script}\n{texts[-1]}")
    return texts


def compare(page: Path, step: Step, text: str) -> None:
    """Fails where a line of the page is not printed, in its place."""
    printed = [_plain(line) for line in text.splitlines()]
    at = 0
    for line, varies in step.expected:
        wanted = _pattern(line, varies)
        place = next((n for n in range(at, len(printed)) if wanted.search(printed[n])), None)
        assert place is not None, f"{page.name}: this is not printed: {line}\n{step.script}\n{text}"
        at = place + 1


def _pattern(line: str, varies: bool) -> re.Pattern[str]:
    parts = [re.escape(part) for part in _plain(line).split("...")]
    pattern = ".*".join(parts)
    if varies and "epsilon" not in line:
        pattern = _NUMBER.sub(lambda _: _NUMBER.pattern, pattern.replace("\\.", "."))
    return re.compile(pattern)


def _plain(line: str) -> str:
    """Without differences that nobody sees."""
    return " ".join(line.split())


def _free_ports(script: str) -> dict[str, int]:
    """Other ports for those that the page names: other pages may run at the same time."""
    named = sorted({COORDINATOR, *re.findall(r"127\.0\.0\.1:(\d{4})\b", script)})
    return dict(zip(named, free_ports(len(named)), strict=True))


def _moved(script: str, ports: dict[str, int]) -> str:
    for port, free in ports.items():
        script = script.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free}")
    return script


def environment(folder: Path, ports: dict[str, int]) -> dict[str, str]:
    """`mpc-vote` and `python` are those of this environment, and of this tree; clients that are
    not told whom to ask ask the page's coordinator."""
    programs = folder / "bin"
    programs.mkdir()
    for name, arguments in (("mpc-vote", "-m mpc_vote.cli"), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        program.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MPC_VOTE_")}
    asking = {
        f"MPC_VOTE_{client}_COORDINATOR": f"127.0.0.1:{ports[COORDINATOR]}"
        for client in CLIENTS
        if COORDINATOR in ports
    }
    return {
        **kept,
        **asking,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "100",
    }


def _end(group: int) -> None:
    """Ends whatever the page left running: all of it is in one session of its own."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
