"""Whether a peer's certificate is still good: a connection outlives what was true when it was made.

TLS verifies a certificate when a connection begins, against no list of revoked ones. So it is
looked at again whenever a connection is used, and while it lasts.
"""

from __future__ import annotations

import datetime as dt

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki import revocation
from mpc_vote.pki.identity import Credentials


def objection(credentials: Credentials, peer: revocation.Peer | None) -> VoteError | None:
    """What speaks against a peer by now, by the newest lists that these credentials have."""
    if peer is None:
        return VoteError(ErrorKind.UNAUTHENTICATED)
    if peer.serials & credentials.newest().revoked.serials:
        return VoteError(ErrorKind.CERTIFICATE_REVOKED)
    if peer.not_after < dt.datetime.now(dt.UTC):
        return VoteError(ErrorKind.CERTIFICATE_EXPIRED)
    return None
