"""What pages point to is there: links, anchors, files, tests, modules and make's targets.

The site's build, part of `make check`, sees links within docs/ and the names of the API reference;
this sees the pages at the root as well, and what stands in backticks.
"""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
# What a running service or a command writes, and so is in no checkout.
UNKEPT = {"bench-results", "build", "data", "dist", "experiment-results", "pki", "runs", "state"}
MADE = {"lock", "models/", "queries/", "results.json", "task.toml", "tokenizer.json"}

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$", re.MULTILINE)
PATH = re.compile(r"(?P<path>[\w./{},-]+)(?P<test>(?:::\w+)*)")
KINDS = {"json", "lock", "md", "proto", "py", "svg", "toml", "yml"}


@cache
def tree() -> frozenset[str]:
    """Files and folders of a checkout, folders with a slash at the end."""
    found = set()
    for folder, inner, files in os.walk(ROOT):
        here = Path(folder).relative_to(ROOT)
        inner[:] = [
            name for name in inner if str(here / name) not in UNKEPT and name[0] not in "._"
        ]
        found |= {str(here / name) for name in files} | {f"{here / name}/" for name in inner}
    return frozenset(found)


@cache
def anchors(page: Path) -> frozenset[str]:
    """Those that GitHub makes of headings: words and hyphens, numbered where they repeat."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in HEADING.findall(FENCE.sub("", page.read_text())):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(found)


def broken_links(page: Path, text: str) -> Iterator[str]:
    """Links of a page, with this text, to what is not there."""
    for link in LINK.findall(CODE.sub("", FENCE.sub("", text))):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / unquote(place)).resolve() if place else page
        if not target.exists() or not target.is_relative_to(ROOT):
            yield f"{link}: no such file"
        elif page.parent != ROOT and not target.is_relative_to(ROOT / "docs"):
            yield f"{link}: not in docs/, so not in the site"
        elif anchor and anchor not in anchors(target):
            yield f"{link}: no such heading"


def broken_names(text: str) -> Iterator[str]:
    """What stands in backticks, looks like something of the repository, and is not in it."""
    for name in CODE.findall(FENCE.sub("", text)):
        if target := re.fullmatch(r"make ([a-z-]+)( .*)?", name):
            if not re.search(rf"^{target[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE):
                yield f"{name}: no such target"
        elif re.fullmatch(r"(mpc_vote|agent_node|aggregator)(\.\w+)+", name):
            if not _importable(name):
                yield f"{name}: no such module, nor a name in one"
        elif (found := PATH.fullmatch(name)) and name not in MADE and _is_ours(found["path"]):
            files = [file for path in _spelled_out(found["path"]) for file in _named(path)]
            if not files or not all(_named(path) for path in _spelled_out(found["path"])):
                yield f"{name}: no such file"
            elif found["test"] and not any(_defines(file, found["test"]) for file in files):
                yield f"{name}: no such test"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_points_to_is_there(page: Path) -> None:
    text = page.read_text()
    assert [*broken_links(page, text), *broken_names(text)] == []


def test_there_are_pages_to_look_at() -> None:
    assert {"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"} <= {
        page.name for page in PAGES
    }
    linked = sum(len(LINK.findall(page.read_text())) for page in PAGES)
    assert linked > 100


@pytest.mark.parametrize(
    "planted",
    [
        "[a page](docs/nowhere.md)",
        "[a heading](docs/deploy.md#nowhere)",
        "[a heading of this page](#nowhere)",
        "![a picture](docs/nowhere.svg)",
        "[outside](../somewhere.md)",
    ],
)
def test_a_broken_link_is_found(planted: str) -> None:
    page = ROOT / "README.md"
    assert len(list(broken_links(page, f"{page.read_text()}\n{planted}\n"))) == 1


def test_a_link_out_of_the_site_is_found() -> None:
    page = ROOT / "docs" / "protocol.md"
    assert len(list(broken_links(page, "[the stubs](../protos/generate.py)"))) == 1


@pytest.mark.parametrize(
    "planted",
    [
        "mpc_vote/nowhere.py",
        "mpc_vote/nowhere/",
        "mpc_vote/{errors,nowhere}.py",
        "nowhere.py",
        "nowhere.proto",
        "nowhere/",
        "tests/unit/project/test_links.py::test_nowhere",
        "test_links.py::test_nowhere",
        "mpc_vote.nowhere",
        "mpc_vote.client.Nowhere",
        "make nowhere",
    ],
)
def test_a_name_of_nothing_is_found(planted: str) -> None:
    assert len(list(broken_names(f"There is `{planted}`."))) == 1


@pytest.mark.parametrize(
    "written",
    [
        "[a page](docs/deploy.md#backups)",
        "[elsewhere](https://example.org/nowhere)",
        "`[code](nowhere.md)`",
        "```\n[code](nowhere.md)\n```",
    ],
)
def test_what_is_right_or_no_link_is_left_alone(written: str) -> None:
    assert list(broken_links(ROOT / "README.md", written)) == []


def _is_ours(path: str) -> bool:
    """Paths from the root, folders, and files of the kinds that we have."""
    if path.startswith(("/", ".", "-")) or path in {"/", ""}:
        return False
    first, slash, rest = path.partition("/")
    if slash and f"{first}/" in tree():
        return True
    if slash and rest:
        return False
    return bool(slash) or (path.rpartition(".")[2] in KINDS and not path.startswith("{"))


def _spelled_out(path: str) -> list[str]:
    """`{a,b}.py` is two."""
    braces = re.search(r"\{([^}]*)\}", path)
    if braces is None:
        return [path]
    return [path[: braces.start()] + one + path[braces.end() :] for one in braces[1].split(",")]


def _named(path: str) -> list[str]:
    """The files and folders that are meant: from the root, or by their last part."""
    if path in tree() or f"{path}/" in tree():
        return [path]
    if "/" in path.rstrip("/"):
        return []
    return [there for there in tree() if there.endswith(f"/{path}")]


def _defines(file: str, test: str) -> bool:
    names = test.split("::")[1:]
    body: list[ast.stmt] = ast.parse((ROOT / file).read_text()).body
    for name in names:
        defined = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        inner = [node for node in body if isinstance(node, defined) and node.name == name]
        if not inner:
            return False
        body = inner[0].body
    return True


def _importable(dotted: str) -> bool:
    """A package or module, a name that occurs in one, or a group of entry points."""
    parts = dotted.split(".")
    for size in range(len(parts), 0, -1):
        path = "/".join(parts[:size])
        file = next((f for f in (f"{path}.py", f"{path}/__init__.py") if f in tree()), None)
        if file is not None:
            source = (ROOT / file).read_text()
            inside = all(re.search(rf"\b{name}\b", source) for name in parts[size:])
            return inside or dotted in _groups()
    return False


@cache
def _groups() -> frozenset[str]:
    """Entry points by which other packages add theirs."""
    sources = [(ROOT / file).read_text() for file in tree() if re.match(r"mpc_vote/.*\.py$", file)]
    return frozenset(re.findall(r'^GROUP = "([\w.]+)"$', "\n".join(sources), re.MULTILINE))
