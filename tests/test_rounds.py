"""What a coordinator tells of a round that failed at its parties.

Invariant: a client is told when to come back only where nobody has spent anything, for it comes
back by itself. Parties say what they like.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from aggregator.archive import Archive
from aggregator.attendance import Attendance, Ballots
from aggregator.rounds import Round, RoundRunner
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.privacy.ledger import Ledger
from mpc_vote.proto.mpcvote.v1 import party_pb2
from mpc_vote.spec import Spec
from tests.fuzz.decoders import PARTIES, spec_message
from tests.fuzz.fakes import Channel

LATER = VoteError(ErrorKind.SERVICE_BUSY, got=4, retry_after=0.01)


async def _come_back(*_: Any, **__: Any) -> Any:
    """A party's answer."""
    code, metadata = LATER.kind.status, grpc.aio.Metadata(*LATER.trailing_metadata())
    raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata)


class Runner(RoundRunner):
    """All agents are prepared at once, and have all submitted at once."""

    async def _collect(self, round_: Round, ballots: Ballots, seconds: float) -> None:
        ballots.prepared |= set(ballots.spec.roster)


async def _well(request: Any, **_: Any) -> Any:
    return party_pb2.OpenRoundResponse()


async def _empty(request: Any, **_: Any) -> Any:
    return party_pb2.ListHoldingsResponse()


@pytest.mark.parametrize("paid", [False, True])
async def test_a_party_can_not_have_a_client_pay_again(tmp_path: Path, paid: bool) -> None:
    asked = 0

    async def hold(request: Any, **_: Any) -> Any:
        """Before anybody is charged all is well; when shares are to be listed it is not."""
        nonlocal asked
        asked += 1
        return await (_come_back if asked > len(PARTIES) else _empty)(request)

    answers = {"OpenRound": _well if paid else _come_back, "ListHoldings": hold}
    channel: Any = Channel(answers)
    archive = Archive(tmp_path)
    spec = Spec.seal(spec_message(deadline_unix_ms=int(1000 * (time.time() + 60))))
    archive.open_round("client", "", b"", spec, np.zeros((5, 2), np.float32))
    with Ledger(tmp_path / "ledger.db", None) as ledger:
        parties = dict.fromkeys(PARTIES, channel)
        round_ = Round(spec, 1e-3)
        await Runner(archive, ledger, Attendance(archive), parties, 1.0).run(round_)
        assert bool(list(ledger.spends())) is paid
    archive.close()
    assert round_.error is not None and round_.error.kind is ErrorKind.SERVICE_BUSY
    assert round_.error.retry_after == (None if paid else LATER.retry_after)
