"""The table of who may call what, in docs/protocol.md, is what the code and the tests say."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import mpc_vote.proto.mpcvote.v1 as wire
from tests.system.service.test_roles import ALLOWED, ANYBODY, SERVED_BY

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| `(\w+/\w+)` \| (\w+).*? \| (\w+).*? \| (.+?) \|$", re.MULTILINE)
TEST = re.compile(r"`(?:tests/system/service/)?(test_\w+\.py)::(test_\w+)`")


def section() -> str:
    text = (ROOT / "docs" / "protocol.md").read_text()
    return text.partition("## Who may call what")[2].partition("\n## ")[0]


def calls() -> set[str]:
    """Every call of every .proto file."""
    names = [module.name for module in pkgutil.iter_modules(wire.__path__)]
    files = [importlib.import_module(f"{wire.__name__}.{n}") for n in names if n.endswith("_pb2")]
    return {
        f"{service.name}/{method.name}"
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def test_every_call_is_in_the_table_once_with_its_server_and_its_callers() -> None:
    rows = ROW.findall(section())
    assert sorted(method for method, *_ in rows) == sorted(calls())
    for method, server, caller, _ in rows:
        if method not in ANYBODY:
            assert caller == ALLOWED[method]
            assert server == SERVED_BY[method.partition("/")[0]].role


def test_every_test_that_is_named_exists() -> None:
    named = TEST.findall(section())
    assert len(named) == section().count(".py::test_")
    assert len(named) >= len(calls())
    for file, name in named:
        text = (ROOT / "tests" / "system" / "service" / file).read_text()
        assert re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), (file, name)
