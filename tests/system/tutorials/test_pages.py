"""The tutorials work as they are written, and print what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.tutorials import pages

SECONDS = 240.0


def test_every_page_is_run() -> None:
    assert {page.stem for page in pages.PAGES.glob("*.md")} == {"table"}


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("name", ["table"])
def test_a_page_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    page = pages.PAGES / f"{name}.md"
    texts = pages.run(page, tmp_path, SECONDS)
    for step, text in zip(pages.steps(page, tmp_path), texts, strict=True):
        pages.compare(page, step, text)
