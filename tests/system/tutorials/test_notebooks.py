"""The notebooks run from their first cell to their last, and print what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.system.tutorials import pages

SECONDS = 180
NOTEBOOKS = ("models", "table")


def test_every_notebook_is_run() -> None:
    assert {path.stem for path in pages.PAGES.glob("*.ipynb")} == set(NOTEBOOKS)


def printed(cell: Any) -> str:
    return "".join(out["text"] for out in cell.get("outputs", []) if out.output_type == "stream")


@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS)
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_prints_what_it_holds(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    for key, value in pages.environment(tmp_path, {}).items():
        monkeypatch.setenv(key, value)
    work = tmp_path / "work"
    work.mkdir()
    path = pages.PAGES / f"{name}.ipynb"
    held = nbformat.read(path, as_version=4)
    run = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        run, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(work)}}
    ).execute()
    compared = 0
    for before, after in zip(held.cells, run.cells, strict=True):
        lines = [(line, True) for line in printed(before).splitlines() if line.strip()]
        pages.compare(path, pages.Step(before.source, lines), printed(after))
        compared += len(lines)
    assert compared
