"""A coordinator that lies to its clients neither steers their terminals nor crashes their
commands. What it can't fill is in `tests/unit/test_answers.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import grpc.aio
import numpy as np
import pytest

from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import Credentials, Identity, Role, server_options
from mpc_vote.proto.mpcvote.v1 import (
    common_pb2,
    label_pb2,
    label_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
)
from mpc_vote.simulation.vote import simulated_spec
from mpc_vote.voting.ballots import ONE_HOT
from tests.system.service.support import command

# Sets a title, clears the screen, begins a line, turns the direction; and is markup, of which the
# second can't be read.
STEERING = "\x1b]0;title\x07\x1b[2J\nline\u202e"
MARKUP = "[bold]bold[/bold][/x]"
ROWS = 4


class Liar(label_pb2_grpc.LabelServiceServicer, model_pb2_grpc.ModelServiceServicer):
    """A coordinator that answers with the same text wherever it can."""

    def __init__(self) -> None:
        self.text = ""

    async def RequestLabels(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for _ in requests:
            pass
        event, text = label_pb2.RequestLabelsResponse, self.text
        progress = label_pb2.Progress(stage=label_pb2.STAGE_VOTING, total=1, detail=text)
        absence = label_pb2.Absence(agent=text, reason=text)
        yield event(opened=label_pb2.RoundOpened(warnings=[text]))
        yield event(progress=progress)
        yield event(labels=label_pb2.Labels(width=1, values=[0] * ROWS))
        yield event(completed=label_pb2.RoundCompleted(round_id=text, absences=[absence]))

    async def PlanRound(self, request: Any, context: Any) -> Any:
        spec = simulated_spec(ONE_HOT, request.plan.queries, 3, dict.fromkeys("abcdefgh", 0), 1.0)
        return label_pb2.PlanRoundResponse(
            spec=spec.message,
            left_out=[label_pb2.Absence(agent=self.text, reason=self.text)],
            warnings=[self.text],
            over_budget=self.text,
            unready_parties=[self.text],
        )

    async def ListRounds(self, request: Any, context: Any) -> Any:
        return label_pb2.ListRoundsResponse(rounds=[self._summary()])

    def _summary(self) -> label_pb2.RoundSummary:
        state = label_pb2.ROUND_STATE_COMPLETE
        ballot = common_pb2.BALLOT_KIND_ONE_HOT
        return label_pb2.RoundSummary(
            round_id=self.text, reason=self.text, state=state, ballot=ballot
        )

    async def GetService(self, request: Any, context: Any) -> Any:
        offer = common_pb2.Offer(query_dtype=common_pb2.DTYPE_FLOAT32)
        agent = label_pb2.AgentPresence(agent=self.text, offer=offer)
        return label_pb2.GetServiceResponse(agents=[agent], parties=[self.text])

    async def Train(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        async for _ in requests:
            pass
        yield model_pb2.TrainResponse(model=self._model())

    async def ListModels(self, request: Any, context: Any) -> Any:
        return model_pb2.ListModelsResponse(models=[self._model()])

    def _model(self) -> model_pb2.Model:
        return model_pb2.Model(version=1, round_ids=[self.text], metrics={self.text: 1.0})


class Lied:
    """A liar that serves, and its client."""

    def __init__(self, liar: Liar, address: str, certs: Path) -> None:
        self.liar, self.address, self.certs = liar, address, certs


@pytest.fixture
async def lied(tmp_path: Path) -> AsyncIterator[Lied]:
    authority = CertificateAuthority.create(tmp_path / "ca")
    for identity in (Identity(Role.COORDINATOR, "coordinator"), Identity(Role.CLIENT, "me")):
        authority.issue(identity, tmp_path / identity.role)
    credentials = Credentials.load(tmp_path / Role.COORDINATOR)
    server = grpc.aio.server(options=server_options())
    liar: Liar = cast(Any, Liar)()  # the stubs say abstract of what gRPC itself fills in
    label_pb2_grpc.add_LabelServiceServicer_to_server(liar, server)
    model_pb2_grpc.add_ModelServiceServicer_to_server(liar, server)
    port = server.add_secure_port("127.0.0.1:0", credentials.server_credentials())
    await server.start()
    yield Lied(liar, f"127.0.0.1:{port}", tmp_path / Role.CLIENT)
    await server.stop(None)


COMMANDS = {
    "label": ["--classes=3", "--queries=queries.npy", "--out=labels.npy"],
    "plan": ["--classes=3", "--sigma=1"],
    "rounds": [],
    "status": [],
    "train": [],
    "model": [],
}


@pytest.mark.parametrize("text", [STEERING, MARKUP], ids=["steering", "markup"])
@pytest.mark.parametrize("name", COMMANDS)
async def test_what_it_says_is_shown_as_it_is(
    lied: Lied, tmp_path: Path, name: str, text: str
) -> None:
    lied.liar.text = text
    np.save(tmp_path / "queries.npy", np.zeros((ROWS, 2), np.float32))
    arguments = [
        given.replace("=", f"={tmp_path}/") if ".npy" in given else given
        for given in COMMANDS[name]
    ]
    flags = [f"--certs={lied.certs}", f"--coordinator={lied.address}", *arguments]
    done = await asyncio.to_thread(command, name, *flags)
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr
    shown = "\\x1b]0;title\\x07\\x1b[2J\\nline\\u202e" if text is STEERING else MARKUP
    assert shown in told
    assert not set(told) & {"\x1b", "\x07", "\u202e"}
