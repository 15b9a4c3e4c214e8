"""The Python that the README and docstrings show runs as it is shown, on a real service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from mpc_vote import client
from mpc_vote.argmax import drop_in
from mpc_vote.pki.identity import Role
from tests.system.service.support import Group, Service

README = Path(__file__).parents[3] / "README.md"
FENCED = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^(?:    .*)?\n)+", re.MULTILINE)


def readme() -> list[str]:
    return FENCED.findall(README.read_text())


def examples_of(docstring: str | None) -> list[str]:
    """Indented blocks."""
    blocks = INDENTED.findall(docstring or "")
    return [textwrap.dedent(block) for block in blocks if block.strip()]


def adapted(code: str, service: Service, group: Group) -> str:
    """The same with this service's address, this client's folder and as many classes; its few
    votes would be drowned."""
    certs = service.certs(Role.CLIENT, "client")
    for shown, real in (
        ("localhost:7000", service.cluster.coordinator_address),
        ("certs/client/me", str(certs)),
        ("classes=10", f"classes={group.classes}, agreement=None"),
    ):
        assert shown in code
        code = code.replace(shown, real)
    return code


@pytest.mark.parametrize("source", ["README", "mpc_vote.client"])
def test_a_client_as_it_is_shown_gets_labels(
    source: str, service: Service, clinics: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = readme() if source == "README" else examples_of(client.__doc__)
    assert len(examples) == 1
    names: dict[str, Any] = {"queries": clinics.queries(8)}
    exec(adapted(examples[0], service, clinics), names)
    result = names["result"]
    assert isinstance(result, client.LabelResult)
    assert result.labels.shape == (8,)
    assert str(result.labels) in capsys.readouterr().out


def test_the_drop_in_as_it_is_shown_finds_the_largest() -> None:
    """In a process of its own: this one may have CrypTen bound to sessions of the service."""
    (example,) = examples_of(drop_in.__doc__)
    *before, last = example.strip().splitlines()
    code = "\n".join(["import torch", *before, f"print({last}.tolist())"])
    alone = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=alone,
    )
    assert done.stdout.strip() == "[1]", done.stderr
