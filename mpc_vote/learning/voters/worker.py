"""The process in which a voter of the owner's runs: see `isolated`.

It is told what to make, makes it, tries it, says which ballots it casts, and then answers queries
until its agent hangs up.
"""

from __future__ import annotations

import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import mpc_vote
from mpc_vote.app.process import die_with_parent, leave_no_core
from mpc_vote.learning.voters import make_voter
from mpc_vote.learning.voters.answers import FaultyAnswer
from mpc_vote.learning.voters.frames import Deadline, receive, send
from mpc_vote.learning.voters.messages import opened
from mpc_vote.plugins import PluginError
from mpc_vote.voting.ballots import BALLOTS

_OURS = Path(mpc_vote.__file__).parent
_ANY_SIZE = 1 << 62
_FOREVER = Deadline(None)
_DETAIL = 8_000


def main(descriptor: int) -> None:
    """Serves one agent."""
    die_with_parent()
    leave_no_core()
    line = socket.socket(fileno=descriptor)
    try:
        voter = make_voter(*opened(*receive(line, _ANY_SIZE, _FOREVER)))
    except (Exception, SystemExit) as error:
        send(line, _refusal(error), [], _FOREVER)
        return
    kinds = [kind.name for kind in voter.kinds]
    send(line, {"kinds": kinds, "k": int(voter.k)}, [], _FOREVER)
    while True:
        try:
            header, (queries,) = receive(line, _ANY_SIZE, _FOREVER)
        except EOFError:
            return
        try:
            votes = np.asarray(voter.vote(queries, BALLOTS.by_name(header["kind"])))
            send(line, {}, [votes], _FOREVER)
        except (Exception, SystemExit) as error:
            fault = error.fault.name if isinstance(error, FaultyAnswer) else ""
            told = {"failed": _owners(error)[-_DETAIL:], "fault": fault}
            send(line, told, [], _FOREVER)


def _owners(error: BaseException) -> str:
    """What went wrong, and where in the owner's code; nobody can mend a call of ours."""
    if isinstance(error, FaultyAnswer):
        return str(error)
    at = error.__traceback__
    while at is not None and Path(at.tb_frame.f_code.co_filename).is_relative_to(_OURS):
        at = at.tb_next
    return "".join(traceback.format_exception(type(error), error, at))


def _refusal(error: BaseException) -> dict[str, Any]:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    text = str(error) if isinstance(error, ValueError | OSError | ImportError) else repr(error)
    plugin = isinstance(error, PluginError)
    return {"refused": text[:_DETAIL], "module": missing, "plugin": plugin}


if __name__ == "__main__":
    main(int(sys.argv[1]))
