"""The `mpc-vote` command: roles, client and demo under one name.

Commands of this package are listed here; those of the roles' packages come in by the entry points
`mpc_vote.commands`, so that the library imports no role. Nothing is imported before it is needed:
health checks run often.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module

Command = Callable[[Sequence[str]], int]

_OWN = {
    "demo": ("mpc_vote.cli.demo:command", "run the whole service on this machine, end to end"),
    "certs": ("mpc_vote.cli.certs:command", "make a certificate authority and certificates"),
    "label": ("mpc_vote.cli.label:command", "ask the service for labels of a batch of queries"),
    "features": ("mpc_vote.cli.features:command", "map pictures to features of a backbone"),
    "audit": ("mpc_vote.cli.audit:command", "attack voters and labels, against the claims"),
    "bench": ("mpc_vote.cli.bench:command", "measure the secure argmax, near and far"),
    "chaos": ("mpc_vote.cli.chaos:command", "break things at every step, and check what holds"),
    "experiment": ("mpc_vote.cli.experiment:command", "repeat the paper's experiments"),
    "account": ("mpc_vote.cli.account:command", "say what epsilon a plan costs, or solve for one"),
    "relay": ("mpc_vote.cli.relay:command", "forward addresses, late and slowly if told to"),
    "status": ("mpc_vote.cli.status:command", "show who attends and what has been spent"),
    "budget": ("mpc_vote.cli.budget:command", "show what is spent, left, and what that still buys"),
    "rounds": ("mpc_vote.cli.rounds:command", "list rounds, or fetch the labels of one again"),
    "train": ("mpc_vote.cli.train:command", "train the global model on released labels"),
    "model": ("mpc_vote.cli.model:command", "list, fetch or use the global model"),
    "health": ("mpc_vote.cli.health:command", "ask a process whether it can do its work"),
}
_ROLES = {
    "coordinator": "run the server",
    "party": "run a compute party",
    "dealer": "run the dealer",
    "agent": "run an organisation's agent",
    "token": "make one-time tokens with which new agents enrol",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        print(_usage())
        return 0 if given else 2
    if given[0] == "--version":
        from importlib import metadata

        print(f"mpc-vote {metadata.version('mpc-vote')}")
        return 0
    command = _find(given[0])
    if command is None:
        why = f"there is no command {given[0]!r}{meant(given[0], [*_OWN, *_ROLES])}"
        print(f"mpc-vote: error: {why}\n\n{_usage()}", file=sys.stderr)
        return 2
    return command(given[1:])


def meant(word: str, known: Iterable[str]) -> str:
    """Asks about the known word that is most like this one, if any is."""
    from difflib import get_close_matches

    return "".join(f"; did you mean {near}?" for near in get_close_matches(word, known, n=1))


def _find(name: str) -> Command | None:
    if name in _OWN:
        module, _, attribute = _OWN[name][0].partition(":")
        command: Command = getattr(import_module(module), attribute)
        return command
    from importlib import metadata

    for entry in metadata.entry_points(group="mpc_vote.commands", name=name):
        loaded: Command = entry.load()
        return loaded
    return None


def _usage() -> str:
    rows = [*((name, text) for name, (_, text) in _OWN.items()), *_ROLES.items()]
    lines = "\n".join(f"  {name:<12} {text}" for name, text in rows)
    return (
        "usage: mpc-vote COMMAND [--help] [options]\n\n"
        "Secure multi-party voting for private federated labelling.\n\n"
        f"commands:\n{lines}"
    )
