"""Who takes part in a cluster, as one writes it in a script: files, settings or functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from mpc_vote.app.process import CommandError

Function: TypeAlias = Callable[[Any], Any]
Member: TypeAlias = str | Path | Mapping[str, object] | Function
_QUORUM = "min-quorum"
# Settings that are paths: an agent's process may have another working directory one day.
_PATHS = ("data", "public", "model-ca")


def check_members(members: Mapping[str, Member]) -> None:
    """Refuses what could be no federation, before anything is made for it."""
    if not isinstance(members, Mapping):
        raise CommandError(
            'agents are given by name, as in {"ann": "ann.csv", "bob": "bob.csv"}, not as a '
            f"{type(members).__name__}"
        )
    if not members:
        raise CommandError("a cluster needs agents, and none is given: nobody could vote")
    for name, member in members.items():
        settings = member if isinstance(member, Mapping) else {}
        for key, value in settings.items():
            least = str(value)
            if key.replace("_", "-") == _QUORUM and least.isdigit() and int(least) > len(members):
                raise CommandError(
                    f"agent {name} refuses rounds of fewer than {least} agents, and there are "
                    f"{len(members)}: lower its {key}, or add agents"
                )


def settings_of(
    members: Mapping[str, Member], task: Path
) -> tuple[dict[str, dict[str, str]], dict[str, Function]]:
    """The settings of agents with processes of their own, and the functions of the others."""
    settings: dict[str, dict[str, str]] = {}
    functions: dict[str, Function] = {}
    for name, member in members.items():
        if isinstance(member, str | Path):
            settings[name] = _checked(name, {"data": str(member)}, task)
        elif isinstance(member, Mapping):
            given = {str(key).replace("_", "-"): str(value) for key, value in member.items()}
            settings[name] = _checked(name, given, task)
        elif callable(member):
            functions[name] = member
        else:
            raise CommandError(
                f"agent {name} must be a file of data, settings or a function, "
                f"not a {type(member).__name__}"
            )
    return settings, functions


def _checked(name: str, settings: dict[str, str], task: Path) -> dict[str, str]:
    """Settings with whole paths, of which the data must be there."""
    found = {
        key: str(Path(value).resolve()) if key in _PATHS else value
        for key, value in settings.items()
    }
    data = found.get("data")
    if data is not None and not Path(data).exists():
        raise CommandError(f"agent {name}: there is no {data}")
    return {"task": str(task), **found}
