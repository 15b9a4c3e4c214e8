"""Plain CrypTen processes: pytest's own has CrypTen bound to our sessions, for good."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

_SECONDS = 110.0


def outputs(script: str, processes: int, *arguments: str, world: int | None = None) -> list[str]:
    """The last line that each process prints, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        children = [
            subprocess.Popen(
                [sys.executable, "-c", script, *arguments],
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world or processes),
                    "RENDEZVOUS": f"file://{folder}/rendezvous",
                    "DISTRIBUTED_BACKEND": "gloo",
                    "GLOO_SOCKET_IFNAME": "lo",
                    "OMP_NUM_THREADS": "1",
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(processes)
        ]
        try:
            said = [child.communicate(timeout=_SECONDS)[0] for child in children]
        finally:
            for child in children:
                child.kill()
                child.wait()
    return [lines.splitlines()[-1] for lines in said]
