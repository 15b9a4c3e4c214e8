"""Parts that other packages can add: by an entry point, or by `module:name`.

What this project brings itself is listed by whoever asks, so that it works without being installed.
Loading runs the plug-in's code in this process, with all that this process may do.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module, metadata
from operator import attrgetter
from typing import Any


class PluginError(ValueError):
    """There is no such plug-in, or it can't be loaded; the sentence says what to do."""


def names(group: str, own: Mapping[str, str]) -> list[str]:
    """All that can be chosen by name."""
    return sorted({*own, *(entry.name for entry in metadata.entry_points(group=group))})


def place(group: str, own: Mapping[str, str], name: str) -> str:
    """Where the object is that a name stands for, one of ours, an entry point's, or `module:name`;
    nothing is loaded."""
    if name in own:
        return own[name]
    if ":" in name:
        return name
    for entry in metadata.entry_points(group=group, name=name):
        return entry.value
    known = ", ".join(names(group, own))
    raise PluginError(
        f"{name!r} is unknown: choose one of {known}, or pass module:name of an object of your own"
    )


def load(group: str, own: Mapping[str, str], name: str) -> Any:
    """The object that a name stands for; one of ours may lack a package, which is then named."""
    where = place(group, own, name)
    try:
        return _imported(where, name)
    except PluginError as error:
        if name in own and isinstance(error.__cause__, ModuleNotFoundError):
            raise error.__cause__ from None
        raise


def _imported(where: str, name: str) -> Any:
    module, _, attribute = where.partition(":")
    try:
        return attrgetter(attribute)(import_module(module))
    except (ImportError, AttributeError) as error:
        raise PluginError(f"{name!r} can't be loaded: {error}") from error
    except (Exception, SystemExit) as error:  # of the module's own code
        raise PluginError(f"{name!r} can't be loaded: {type(error).__name__}: {error}") from error
