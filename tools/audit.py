"""Asks whether anything pinned has a known vulnerability: pip-audit, and a check that it can see.

An index that knows no vulnerabilities looks to pip-audit like packages that have none. So it is
asked first for a release that is known to be bad; if that isn't found, nothing was audited, and
this says so loudly, without failing a machine that is offline.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KNOWN_BAD = "jinja2==2.4.1"

# Findings that do not concern this project, each with the reason.
IGNORED: dict[str, str] = {}


def main(arguments: list[str] | None = None) -> int:
    """1 if something is vulnerable or was left out; 0 if all is well or no service answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("locks", nargs="+", type=Path, help="requirement files with hashes")
    parser.add_argument("--osv-url", help="ask this OSV service instead of PyPI")
    given = parser.parse_args(arguments)
    service = ["-s", "osv", "--osv-url", given.osv_url] if given.osv_url else []

    with tempfile.NamedTemporaryFile("w", suffix=".txt") as bad:
        bad.write(KNOWN_BAD)
        bad.flush()
        found, said = _audit([*service, "--no-deps", "-r", bad.name])
    if not any(package.get("vulns") for package in found):
        line = "#" * 78
        print(f"{line}\nNOTHING WAS AUDITED: no vulnerability service answers here\n{line}")
        print(f"(asked for {KNOWN_BAD}, which is known to be bad: {said or 'it found nothing'})")
        return 0

    ignored = [part for name in IGNORED for part in ("--ignore-vuln", name)]
    locks = [part for lock in given.locks for part in ("-r", str(lock))]
    found, said = _audit([*service, *ignored, "--require-hashes", *locks])
    problems = [
        f"{package['name']} {package['version']}: {finding['id']}, "
        f"fixed in {', '.join(finding['fix_versions']) or 'no version yet'}"
        for package in found
        for finding in package.get("vulns", ())
    ]
    problems += [package["skip_reason"] for package in found if "skip_reason" in package]
    if not found:
        problems.append(f"the audit did not end: {said}")
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        print(f"{len(found)} packages audited, none with a known vulnerability")
    return 1 if problems else 0


def _audit(options: list[str]) -> tuple[list[dict[str, Any]], str]:
    """What pip-audit found for each package, none if it did not end; and its last words."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--progress-spinner=off"]
    done = subprocess.run([*command, "-f", "json", *options], capture_output=True, text=True)
    said = done.stderr.strip().rpartition("\n")[2]
    return (json.loads(done.stdout)["dependencies"] if done.stdout else []), said


if __name__ == "__main__":
    sys.exit(main())
