"""The mark of a dealer that was caught: while it stands, a party takes nothing that was dealt.

Otherwise a dealer that was caught could try again until it is not.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc.cut_and_choose import DealerCaught

log = logging.getLogger(__name__)


class DealerMark:
    """A file that an operator removes when the matter is settled."""

    def __init__(self, path: Path, party: str) -> None:
        self._path = path
        self._party = party
        # From the moment it is caught until the file is written; to the end, if it can't be.
        self._marking = False

    @property
    def stands(self) -> bool:
        """Whether the dealer was caught."""
        return self._marking or self._path.exists()

    def refuse(self) -> None:
        """Ends what would use anything of a dealer that was caught."""
        if self.stands:
            raise VoteError(ErrorKind.DEALER_REFUSED, who=self._party, path=self._path.name)

    def set(self, error: DealerCaught) -> None:
        """Marks the dealer, in any thread; the mark is on disk when it returns."""
        self._marking = True
        log.critical("%s Nothing is counted while %s exists.", error, self._path)
        try:
            # It counts by its name, which takes no descriptor: whoever has used them all up, by
            # connections, keeps nobody from it.
            with contextlib.suppress(OSError):
                os.mknod(self._path, 0o600)
            with self._path.open("w") as file:
                file.write(f"{error}\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            log.exception("the reason can't be written into the mark")
            os.sync()
        self._marking = not self._path.exists()
        if self._marking:
            log.critical("the mark can't be written: no round is accepted until a restart")
