"""The `mpc-vote` command: roles, client and demo under one name.

A command is a module with a function `command`. None is imported before it is needed: health checks
run often. One that lacks a package says what to install.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module

Command = Callable[[Sequence[str]], int]

_COMMANDS = {
    "demo": ("mpc_vote.testbed.demo.command", "run the whole service on this machine, end to end"),
    "task": ("mpc_vote.cli.task", "draft, check or show the file that all members agree on"),
    "certs": ("mpc_vote.cli.certs", "make a certificate authority and certificates"),
    "plan": ("mpc_vote.cli.plan", "estimate how good labels will be and what they will cost"),
    "label": ("mpc_vote.cli.label", "ask the service for labels of a batch of queries"),
    "features": ("mpc_vote.cli.features", "map pictures to features of a backbone"),
    "audit": ("mpc_vote.testbed.audit.command", "attack voters and labels, against the claims"),
    "bench": (
        "mpc_vote.testbed.bench.command",
        "measure the secure argmax, also at a distance",
    ),
    "chaos": ("mpc_vote.testbed.chaos.command", "inject faults at every step, check invariants"),
    "experiment": ("mpc_vote.cli.experiment", "repeat the paper's experiments"),
    "account": ("mpc_vote.cli.account", "say what epsilon a plan costs, or solve for one"),
    "relay": ("mpc_vote.cli.relay", "forward addresses, with delay and a rate limit if wanted"),
    "status": ("mpc_vote.cli.status", "show which agents are connected and what has been spent"),
    "budget": ("mpc_vote.cli.budget", "show what is spent, what is left and what that allows"),
    "rounds": ("mpc_vote.cli.rounds", "list rounds, or fetch the labels of one again"),
    "train": ("mpc_vote.cli.train", "train the global model on released labels"),
    "model": ("mpc_vote.cli.model", "list, fetch or use the global model"),
    "health": ("mpc_vote.cli.health", "ask a process whether it is healthy"),
    "coordinator": ("aggregator.coordinator.command", "run the server"),
    "party": ("aggregator.party.command", "run a compute party"),
    "dealer": ("aggregator.dealer.command", "run the dealer"),
    "agent": ("agent_node.command", "run an organisation's agent"),
    "token": (
        "aggregator.coordinator.token_command",
        "make one-time tokens with which new agents enrol",
    ),
}
# Processes that measuring commands start.
_WORKERS = {
    "bench-party": "mpc_vote.testbed.bench.party",
    "bench-agents": "mpc_vote.testbed.bench.agents",
    "audit-agents": "mpc_vote.testbed.audit.agents",
}
# The extra of this package that brings what a command needs.
_CLI = "cli"
_EXTRAS = {
    **dict.fromkeys(("coordinator", "party", "dealer", "token"), "server"),
    "agent": "agent",
    **dict.fromkeys(("features", "experiment"), "learning"),
    **dict.fromkeys(("demo", "audit", "bench", "chaos", *_WORKERS), "bench"),
}
# Packages that commands need only when told so, and the extra that brings each. CrypTen's own is
# not in its extra: its metadata ask for a package that can't be installed any more.
_FURTHER = {
    **dict.fromkeys(("PIL", "pyarrow"), "data"),
    **dict.fromkeys(("torch", "torchvision", "safetensors"), "learning"),
    **dict.fromkeys(("tokenizers", "transformers"), "text"),
    **dict.fromkeys(("crypten", "omegaconf", "onnx", "yaml"), "crypten"),
    **dict.fromkeys(("matplotlib", "mlxtend"), "bench"),
    **dict.fromkeys(("onnxruntime", "sklearn", "skops"), "models"),
}
_PAST_METADATA = {"crypten": "pip install --no-deps crypten==0.4.1"}
_OWN = ("mpc_vote", "agent_node", "aggregator")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        _print(_usage())
        return 0 if given else 2
    if given[0] == "--version":
        from importlib import metadata

        _print(f"mpc-vote {metadata.version('mpc-vote')}")
        return 0
    try:
        command = _find(given[0])
        if command is not None:
            return command(given[1:])
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", *_OWN):
            raise
        print(f"mpc-vote {given[0]}: error: {_advice(given[0], package)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the command itself began
        print(f"mpc-vote {given[0]}: error: interrupted", file=sys.stderr)
        return 130
    why = f"there is no command {given[0]!r}{meant(given[0], _COMMANDS)}"
    print(f"mpc-vote: error: {why}\n\n{_usage()}", file=sys.stderr)
    return 2


def meant(word: str, known: Iterable[str]) -> str:
    """Asks about the known word that is most like this one, if any is."""
    from difflib import get_close_matches

    return "".join(f"; did you mean {near}?" for near in get_close_matches(word, known, n=1))


def _find(name: str) -> Command | None:
    module = _COMMANDS[name][0] if name in _COMMANDS else _WORKERS.get(name)
    if module is None:
        return None
    command: Command = import_module(module).command
    return command


def _advice(command: str, package: str) -> str:
    """What to install for a command that lacks a package."""
    extras = {_EXTRAS.get(command, _CLI)}
    if package in _FURTHER:
        extras.add(_FURTHER[package])
    steps = [f"pip install 'mpc-vote[{','.join(sorted(extras))}]'"]
    if package in _PAST_METADATA:
        steps.append(_PAST_METADATA[package])
    return f"it needs the package {package}, which is not installed; run: {' && '.join(steps)}"


def _print(text: str) -> None:
    """To a reader that may have left, as `head` does."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Else Python tries again at its end, and complains.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage() -> str:
    lines = "\n".join(f"  {name:<12} {text}" for name, (_, text) in _COMMANDS.items())
    return (
        "usage: mpc-vote COMMAND [--help] [options]\n\n"
        "Secure multi-party voting for private federated labelling.\n\n"
        f"commands:\n{lines}"
    )
