"""The documentation as a site: `make docs` builds it into build/site, to be opened from disk.

Sphinx, because it is kept well and will be (MkDocs 1 has had no release since 2024, and its usual
theme ends in 2027); MyST, because the pages stay plain Markdown that reads the same on a code host;
autodoc, which is part of Sphinx, for the API reference. Nothing is loaded from elsewhere.
"""

from __future__ import annotations

import logging
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
_about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

project = _about["name"]
author = _about["authors"][0]["name"]
project_copyright = author
version = release = _about["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc"]
# Sphinx's own theme: another would bring packages of its own.
html_theme = "alabaster"
html_theme_options = {
    "description": _about["description"],
    "fixed_sidebar": True,
    "page_width": "1200px",
    "body_max_width": "none",
    "show_powered_by": False,
}
html_title = f"{project} {version}"
html_copy_source = False
html_show_sphinx = False

# The anchors that code hosts make: pages link to them, and one that is not there is a warning,
# which ends the build.
myst_heading_anchors = 4

# Docstrings are prose with names in single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# By their names in the source: numpy's own are lines long.
autodoc_type_aliases = {
    name: name.removeprefix("npt.")
    for name in ("npt.ArrayLike", "npt.NDArray", "FloatArray", "IntArray", "LabelArray", "Words")
}
_ALIAS = re.compile(r"TypeAliasForwardRef\('([\w.]+)'\)")
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

# Tells how it was loaded, at length.
logging.getLogger("faiss").setLevel(logging.WARNING)


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("autodoc-process-signature", _readable)


def _readable(
    app: Sphinx,
    what: str,
    name: str,
    found: object,
    options: Any,
    call: str | None,
    result: str | None,
) -> tuple[str, str | None] | None:
    """Nobody makes an interface, so it has no arguments; an alias within a type is just a name."""
    if what == "class" and getattr(found, "_is_protocol", False):
        return "", None
    if call is None:
        return None
    return _ALIAS.sub(r"\1", call), result and _ALIAS.sub(r"\1", result)
