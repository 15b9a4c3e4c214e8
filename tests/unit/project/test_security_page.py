"""docs/security.md names the tests that attack its claims; these tests exist, pages link to it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "security.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)((?:::\w+)*)`")


def named() -> list[tuple[str, list[str]]]:
    """Files, and within them classes and tests."""
    return [(file, path.split("::")[1:]) for file, path in NAMED.findall(PAGE.read_text())]


def defined(file: str) -> set[tuple[str, ...]]:
    """Tests and classes of a file, by their path in it."""
    found: set[tuple[str, ...]] = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add((node.name,))
        elif isinstance(node, ast.ClassDef):
            inner = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {(node.name, one.name) for one in inner}
    return found


def test_every_test_that_is_named_exists() -> None:
    paths = named()
    assert len(paths) > 40
    missing = [
        "::".join([file, *path])
        for file, path in paths
        if not (ROOT / file).is_file() or (path and tuple(path) not in defined(file))
    ]
    assert missing == []


def test_every_claim_has_a_test() -> None:
    """Each row of the table names at least one, and each theorem has a row."""
    text = PAGE.read_text()
    table = text.partition("## 13.")[2]
    rows = [row for row in table.splitlines() if row.startswith("| ")][2:]
    assert all(NAMED.search(row) for row in rows)
    claims = set(re.findall(r"^\*\*((?:Theorem|Lemma|Proposition) \d+)", text, re.MULTILINE))
    assert len(claims) >= 7
    assert {claim for claim in claims if claim not in table} == set()


@pytest.mark.parametrize("page", ["README.md", "docs/threat-model.md", "docs/privacy.md"])
def test_pages_that_promise_something_link_the_argument(page: str) -> None:
    assert re.search(r"\((?:docs/)?security\.md", (ROOT / page).read_text())


def test_links_within_the_page_lead_somewhere() -> None:
    text = PAGE.read_text()
    headings = re.findall(r"^##+ (.+)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= anchors
