"""Plug-ins by `module:name`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpc_vote import plugins


def test_a_plugin_may_be_inside_of_another_object() -> None:
    """As entry points name them."""
    assert plugins.load("none", {}, "pathlib:Path.cwd")() == Path.cwd()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit(3)", "SystemExit"),
        ("raise KeyError('x')", "KeyError"),
        ("import no_such_module", "no_such_module"),
        ("", "no attribute 'make'"),
    ],
)
def test_a_plugin_that_can_not_be_loaded_is_an_error_whatever_it_does(
    code: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"plugin_{len(code)}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(plugins.PluginError, match=words):
        plugins.load("none", {}, f"{name}:make")


@pytest.mark.parametrize("name", [":", ":make", "sys:", ".:x", "..up:x", "os:path..join"])
def test_a_name_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(plugins.PluginError, match="can't be loaded"):
        plugins.load("none", {}, name)
