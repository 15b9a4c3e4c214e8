"""Where and with what figures were measured."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

_GIT_SECONDS = 10.0


def machine() -> dict[str, Any]:
    """Where it was measured."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """What was measured, with the commit if the package lies in its repository."""
    found = {name: metadata.version(name) for name in packages}
    root = Path(__file__).parents[2]
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
        try:
            done = subprocess.run(
                [*command, "--abbrev=40"], capture_output=True, text=True, timeout=_GIT_SECONDS
            )
        except FileNotFoundError:
            return found
        if done.returncode == 0:
            found["commit"] = done.stdout.strip()
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
