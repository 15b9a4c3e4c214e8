"""Every method of every servicer, called by scripts: calls in an order, each by somebody, with
messages that are almost right. Whoever a servicer itself calls answers from the script, too."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import grpc
import numpy as np
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from agent_node.agent import Agent
from agent_node.policy import Policy
from agent_node.serving import Serving
from agent_node.settings import AgentSettings
from aggregator.coordinator import requests
from aggregator.coordinator.archive import Archive
from aggregator.coordinator.attendance import Attendance
from aggregator.coordinator.enrolment import EnrolmentServicer, RenewalServicer
from aggregator.coordinator.label_service import LabelServicer
from aggregator.coordinator.model_service import ModelServicer
from aggregator.coordinator.roster import Defaults
from aggregator.coordinator.rounds import RoundRunner
from aggregator.coordinator.tokens import Tokens, _digest
from aggregator.dealer.servicer import MAX_SESSIONS, DealerServicer
from aggregator.party.committee import Committee
from aggregator.party.dealer_mark import DealerMark
from aggregator.party.journal import RoundJournal
from aggregator.party.servicer import MAX_OPEN_ROUNDS, PartyServicer, count_context
from mpc_vote.argmax.registry import TABLE
from mpc_vote.client import AsyncLabelClient, LabelResult, Plan
from mpc_vote.errors import VoteError
from mpc_vote.learning.voters import Voter
from mpc_vote.mpc import in_process as committee
from mpc_vote.mpc.channel import Channel as MpcChannel
from mpc_vote.mpc.cut_and_choose import (
    Drawn,
    Grant,
    Session,
    choose,
    coin_hash,
    commit,
    stream_keys,
)
from mpc_vote.mpc.preprocessing import PreprocessingPlan as Planned
from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.privacy.ledger import Budget, Ledger
from mpc_vote.proto.mpcvote.v1 import (
    agent_pb2,
    common_pb2,
    dealer_pb2,
    enrolment_pb2,
    label_pb2,
    model_pb2,
    party_pb2,
)
from mpc_vote.tasks import Task, agreement
from mpc_vote.transport import frames, tensors
from mpc_vote.voting import codec
from mpc_vote.voting.limits import MAX_K, MAX_TASKS
from mpc_vote.voting.spec import Spec
from tests.security.fuzz import links
from tests.security.fuzz.decoders import (
    AGENTS,
    PARTIES,
    ROUND,
    TASK,
    at_a_fixed_time,
    csrs,
    plan_requests,
    refused,
    spec_message,
    specs,
)
from tests.security.fuzz.fakes import Channel, Kind, Stream, decoded, failure, serve
from tests.security.fuzz.links import PeerAgrees
from tests.security.fuzz.mutate import Call, Script, of_bytes, of_scripts
from tests.security.fuzz.runner import Finding, Run, Target

_SCRIPT_SECONDS = 15.0
_EXCHANGE_SECONDS = 0.02
_HEAD_START_SECONDS = 0.03
_DONE = "done-1"
_ANSWER_SECONDS = 0.2


def methods(*files: Any) -> list[MethodDescriptor]:
    """All methods of these files' services."""
    services = [s for file in files for s in file.DESCRIPTOR.services_by_name.values()]
    return [method for service in services for method in service.methods]


def type_of(method: MethodDescriptor) -> type[Message]:
    """What a caller sends."""
    return GetMessageClass(method.input_type)


def call(names: Sequence[str], name: str, *messages: Message, caller: int = 0) -> Call:
    """A call for a seed."""
    return Call(names.index(name), caller, tuple(m.SerializeToString() for m in messages))


class Loop:
    """An event loop that plays scripts, and in which nothing fails unseen."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._unseen)
        self._failures: list[str] = []

    def run(self, work: Awaitable[str]) -> str:
        """One script; what it leaves running is ended."""
        outcome = self._loop.run_until_complete(self._whole(work))
        if self._failures:
            failures, self._failures = self._failures, []
            raise Finding(f"nobody saw it: {failures[0]}")
        return outcome

    def close(self) -> None:
        self._loop.close()

    async def _whole(self, work: Awaitable[str]) -> str:
        try:
            async with asyncio.timeout(_SCRIPT_SECONDS):
                return await work
        except TimeoutError as error:
            raise Finding("it hangs") from error
        finally:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), _SCRIPT_SECONDS)

    def _unseen(self, _: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, asyncio.CancelledError | VoteError):
            self._failures.append(f"{context['message']} {type(error).__name__}")


async def play(
    script: Script,
    known: Sequence[MethodDescriptor],
    servicer_of: Callable[[MethodDescriptor], object],
    callers: Callable[[MethodDescriptor, int], Identity],
    beside: Sequence[str] = (),
) -> str:
    """Plays the calls in order; those of methods that are `beside`, and those that the script says
    so of, run along with the others."""
    outcomes, along = set(), []
    for one in script.calls:
        if one.method >= len(known):
            continue
        method = known[one.method]
        apart = method.name in beside or bool(one.caller & 8)
        caller = callers(method, one.caller)
        work = serve(servicer_of(method), method, caller, one, alone=not apart)
        if apart:
            along.append(asyncio.create_task(work))
            await asyncio.sleep(_HEAD_START_SECONDS if one.caller & 8 else 0)
        else:
            outcomes.add(await work)
    if along:
        done, others = await asyncio.wait(along, timeout=_EXCHANGE_SECONDS)
        outcomes |= {task.result() for task in done}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    return " | ".join(sorted(outcomes))


def opened(environment: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """A target's `open`: an environment gives a function of a script that returns work."""

    @contextlib.contextmanager
    def make(folder: Path) -> Iterator[Run]:
        loop = Loop()
        with at_a_fixed_time(), environment(folder) as start:
            yield lambda data: loop.run(start(Script.decode(data)))
        loop.close()

    return make


# The dealer

_DEALER = methods(dealer_pb2)


@contextlib.contextmanager
def _dealer(_: Path) -> Iterator[Callable[[Script], Awaitable[str]]]:
    async def start(script: Script) -> str:
        servicer = DealerServicer()
        outcome = await play(
            script, _DEALER, lambda _: servicer, lambda _, n: Identity(Role.PARTY, f"party-{n % 3}")
        )
        named = [sum(map(len, one.session.parties)) for one in servicer._deals.values()]
        if len(named) > MAX_SESSIONS or max(named, default=0) > 2048:
            raise Finding("it keeps too much of a session")
        return outcome

    with mock.patch("aggregator.dealer.servicer._GATHER_SECONDS", 2 * _HEAD_START_SECONDS):
        yield start


def dealer_seeds() -> list[bytes]:
    """Both parties ask, the first while the second does; then the corrections are collected."""
    collect = dealer_pb2.CollectRequest(session_id=ROUND, copy=1).SerializeToString()
    return [
        Script(
            calls=(
                Call(0, 9, (request.SerializeToString(),)),
                Call(0, 3, (request.SerializeToString(),)),
                Call(1, 1, (collect,)),
            )
        ).encode()
        for request in plan_requests()
    ]


# A party

_PARTY = methods(party_pb2)
_PARTY_NAMES = [
    *(method.name for method in _PARTY),
    "dealer says",
    "peer says",
    "dealer sends",
]
_PARTY_TYPES = [
    *map(type_of, _PARTY),
    dealer_pb2.DealResponse,
    party_pb2.SessionHello,
    dealer_pb2.CollectResponse,
]
_COPIES = 2
_DEALT_BYTES = 1 << 20
_SEED = bytes(32)
_SUBMISSION = bytes(16)


def said(script: Script, names: Sequence[str], name: str, kind: type[Kind]) -> list[Kind]:
    """What the other end of a servicer's own calls says, by the script."""
    number = names.index(name)
    given = [m for one in script.calls if one.method == number for m in one.messages]
    return decoded(kind, given)


class Dealt:
    """What an honest dealer makes of a plan. All seeds are the same, and all coins."""

    def __init__(self, plan: Planned) -> None:
        self.session = Session(ROUND, tuple(PARTIES), plan, _COPIES)
        ranks, seeds = range(len(PARTIES)), (_SEED,) * _COPIES
        self.hashes = tuple(self.session.seed_hashes(rank, seeds) for rank in ranks)
        self.transcript = self.session.transcript(self.hashes)
        self.keys = [
            stream_keys(self.transcript, [_SEED for _ in ranks], copy) for copy in range(_COPIES)
        ]

    def said(self) -> list[dealer_pb2.DealResponse]:
        """To any party."""
        grant = dealer_pb2.DealGrant(seed_hashes=self.hashes)
        said = [dealer_pb2.DealResponse(grant=grant)]
        for index, item in enumerate(self.session.plan):
            digests = commit(item, self.keys, index)
            commitments = dealer_pb2.DealCommitments(digests=digests, item=index)
            said.append(dealer_pb2.DealResponse(commitments=commitments))
        return said

    def sent(self, copy: int) -> list[dealer_pb2.CollectResponse]:
        """The corrections of a copy, to the last party."""
        sent: list[dealer_pb2.CollectResponse] = []
        offset = 0
        for index, item in enumerate(self.session.plan):
            data = item.correct(self.keys[copy % _COPIES], index)
            sent.append(dealer_pb2.CollectResponse(data=data, offset=offset))
            offset += len(data)
        return sent

    def drawn(self) -> Drawn:
        """What the parties then agree on."""
        digests = tuple(m.commitments.digests for m in self.said()[1:])
        seeds = (_SEED,) * _COPIES

        def party(channel: MpcChannel, _: Any) -> Drawn:
            grant = Grant(self.session, channel.rank, seeds, self.hashes, digests)
            return choose(grant, channel)

        with one_seed():
            return committee.run_committee(len(PARTIES), party)[0]


def one_seed() -> Any:
    """Parties draw this one, so that a script means the same whenever it is played."""
    return mock.patch("mpc_vote.mpc.cut_and_choose.new_seed", lambda: _SEED)


@contextlib.contextmanager
def _party(folder: Path) -> Iterator[Callable[[Script], Awaitable[str]]]:
    async def start(script: Script) -> str:
        rank = script.setup & 1

        dealt: list[Dealt] = []
        agrees = PeerAgrees(said(script, _PARTY_NAMES, "peer says", party_pb2.SessionHello))

        def deal(request: dealer_pb2.DealRequest) -> Stream:
            plan = codec.from_wire(request.plan)
            dealt.append(Dealt(plan))
            agrees.coin_hash = coin_hash(dealt[-1].transcript, 1 - rank, _SEED)
            given = said(script, _PARTY_NAMES, "dealer says", dealer_pb2.DealResponse)
            large = sum(item.correction_bytes for item in plan) > _DEALT_BYTES
            return Stream(given or ([] if large else dealt[-1].said()))

        def collect(request: dealer_pb2.CollectRequest) -> Stream:
            given = said(script, _PARTY_NAMES, "dealer sends", dealer_pb2.CollectResponse)
            return Stream(given or dealt[-1].sent(request.copy))

        committee = Committee(
            PARTIES[rank],
            tuple(PARTIES),
            "dealer",
            {peer: cast(Any, agrees) for peer in PARTIES[rank + 1 :]},
            cast(Any, agrees),
            cast(Any, Channel({"Deal": deal, "Collect": collect})),
            _EXCHANGE_SECONDS,
        )
        mark = DealerMark(folder / "dealer-caught", PARTIES[rank])
        # A fresh one for each script: a round that was opened in one is unknown in the next.
        kept_in = folder / "journal.db"
        journal = RoundJournal(kept_in)
        servicer = PartyServicer(committee, journal, mark, 1 << 24, _COPIES)
        try:
            outcome = await play(script, _PARTY, lambda _: servicer, party_caller)
        finally:
            for round_ in servicer._rounds.values():
                round_.drop_preprocessing()
            servicer._threads.shutdown(wait=False, cancel_futures=True)
            mark._path.unlink(missing_ok=True)
            journal.close()
            kept_in.unlink()
        if len(servicer._rounds) > MAX_OPEN_ROUNDS:
            raise Finding("too many rounds")
        if any(servicer._uploads.values()):
            raise Finding("it counts uploads that are over")
        return outcome

    with one_seed():
        yield start


def party_caller(method: MethodDescriptor, number: int) -> Identity:
    if method.name == "SubmitShares":
        return Identity(Role.AGENT, (*AGENTS, "eve")[number % 4])
    return Identity(Role.COORDINATOR, "coordinator")


def party_seeds() -> list[bytes]:
    seeds = []
    for rank, message in [(r, m) for r in (0, 1) for m in specs()]:
        spec = Spec.seal(message)
        dealt = Dealt(spec.plan())
        calls = [call(_PARTY_NAMES, "OpenRound", party_pb2.OpenRoundRequest(spec=spec.wire))]
        holdings = []
        for number, agent in enumerate(AGENTS):
            explicit = spec.explicit_rank(agent) == rank
            header = party_pb2.SubmissionHeader(
                round_id=ROUND,
                spec_digest=spec.digest,
                submission_id=_SUBMISSION,
                seed=b"" if explicit else _SEED,
            )
            packed = bytes(spec.share_bytes(agent)) if explicit else b""
            request = party_pb2.SubmitSharesRequest(header=header, packed=packed[:9])
            rest = party_pb2.SubmitSharesRequest(packed=packed[9:])
            calls.append(call(_PARTY_NAMES, "SubmitShares", request, rest, caller=number))
            holdings.append(party_pb2.Holding(agent=agent, submission_id=_SUBMISSION))
        hello = party_pb2.SessionHello(
            session_id=ROUND,
            context=count_context(spec, holdings, dealt.drawn().context),
            zero_seed=_SEED,
        )
        checking = party_pb2.SessionHello(
            session_id=f"{ROUND}.deal",
            context=hashlib.sha256(spec.digest + dealt.transcript).digest(),
            zero_seed=_SEED,
        )
        hellos = call(_PARTY_NAMES, "peer says", checking, hello)
        asked = party_pb2.AggregateRequest(round_id=ROUND, contributors=holdings)
        calls += [
            call(_PARTY_NAMES, "ListHoldings", party_pb2.ListHoldingsRequest(round_id=ROUND)),
            *([hellos] if rank else []),
            call(_PARTY_NAMES, "Aggregate", asked),
            call(_PARTY_NAMES, "AbandonRound", party_pb2.AbandonRoundRequest(round_id=ROUND)),
        ]
        seeds.append(Script(rank, tuple(calls)).encode())
        (first,) = dealt.sent(0)[:1]
        sent = dealer_pb2.CollectResponse(data=first.data[:999])
        calls += [
            call(_PARTY_NAMES, "dealer says", *dealt.said()),
            call(_PARTY_NAMES, "dealer sends", sent),
            hellos,
        ]
        seeds.append(Script(rank, tuple(calls)).encode())
    return seeds


# The coordinator

_COORDINATOR = methods(label_pb2, agent_pb2, model_pb2)
_COORDINATOR_NAMES = [m.name for m in _COORDINATOR] + ["parties hold", "parties count"]
_COORDINATOR_TYPES = [
    *map(type_of, _COORDINATOR),
    party_pb2.ListHoldingsResponse,
    party_pb2.AggregateResponse,
]


@contextlib.contextmanager
def _coordinator(folder: Path) -> Iterator[Callable[[Script], Awaitable[str]]]:
    archive = Archive(folder / "archive")
    _fill(archive)
    ledgers = count()

    async def start(script: Script) -> str:
        ledger = Ledger(folder / f"ledger-{next(ledgers)}.db", Budget(None, None, 1e-3))
        numbers = count(1)
        try:
            with mock.patch.object(secrets, "token_hex", lambda _: f"round-{next(numbers)}"):
                return await _coordinate(script, archive, ledger)
        finally:
            ledger.close()
            ledger.path.unlink()
            archive._db.execute("DELETE FROM rounds WHERE round_id != ?", (_DONE,))
            archive._db.execute("DELETE FROM models WHERE version > 1")

    with (
        mock.patch.object(Spec, "seconds_left", lambda _: _ANSWER_SECONDS),
        mock.patch.object(requests, "_HANG_UP_SECONDS", 0.0),
        mock.patch.object(
            ModelServicer, "_train", lambda *_: model_pb2.Model(version=2, classes=3)
        ),
    ):
        yield start
    archive.close()


def _fill(archive: Archive) -> None:
    """A round that is complete and a model, both of the first client."""
    from mpc_vote.learning.nets.networks import Architecture, Network
    from mpc_vote.learning.students.supervised import Student

    spec = Spec.seal(spec_message(round_id=_DONE))
    archive.add_task(TASK)
    archive.open_round("client-0", "", b"", spec, np.zeros((5, 2), np.float32))
    completed = label_pb2.RoundCompleted(round_id=_DONE)
    archive.complete_round(completed, np.zeros(5, np.uint32))
    scratch = archive.scratch_model_path("model")
    Student(Network(Architecture.for_shape((2,), 3))).save(scratch, {})
    model = model_pb2.Model(
        classes=3, query_dtype=common_pb2.DTYPE_FLOAT32, query_shape=[2], round_ids=[_DONE]
    )
    archive.add_model("client-0", model, scratch)


class _Attendance(Attendance):
    """Looks at what is known of agents whenever somebody asks for it."""

    def present(self) -> dict[str, agent_pb2.Capabilities]:
        present = super().present()
        if any(
            can.ByteSize() > 16 << 10 or len(can.offers) > MAX_TASKS for can in present.values()
        ):
            raise Finding("it keeps too much of an agent")
        if not all(math.isfinite(can.min_sigma) for can in present.values()):
            raise Finding("an agent decides what others want")
        return present


async def _coordinate(script: Script, archive: Archive, ledger: Ledger) -> str:
    opened_rounds: dict[str, Spec] = {}
    counted = said(script, _COORDINATOR_NAMES, "parties count", party_pb2.AggregateResponse)
    held = said(script, _COORDINATOR_NAMES, "parties hold", party_pb2.ListHoldingsResponse)

    async def open_round(request: Any, **_: Any) -> Any:
        spec = Spec.parse(request.spec)
        opened_rounds[spec.round_id] = spec
        return party_pb2.OpenRoundResponse(spec_digest=spec.digest)

    async def list_holdings(request: Any, **_: Any) -> Any:
        roster = opened_rounds[request.round_id].roster
        holdings = [party_pb2.Holding(agent=agent, submission_id=b"1") for agent in roster]
        return held[0] if held else party_pb2.ListHoldingsResponse(holdings=holdings)

    def aggregate(request: Any, **_: Any) -> Any:
        shares = party_pb2.LabelShares(shares=bytes(2 * opened_rounds[request.round_id].rows))
        statistics = party_pb2.AggregateStatistics(rounds=3, seconds=0.1)
        honest = [
            party_pb2.AggregateResponse(shares=shares),
            party_pb2.AggregateResponse(statistics=statistics),
        ]
        return Stream(counted or honest)

    async def dealt(*_: Any, **__: Any) -> Any:
        return party_pb2.AwaitPreprocessingResponse()

    async def abandon(*_: Any, **__: Any) -> Any:
        return party_pb2.AbandonRoundResponse()

    channel: Any = Channel(
        {
            "OpenRound": open_round,
            "AwaitPreprocessing": dealt,
            "ListHoldings": list_holdings,
            "Aggregate": aggregate,
            "AbandonRound": abandon,
        }
    )
    parties = dict.fromkeys(PARTIES, channel)
    attendance = _Attendance(archive, ["eve"], {TASK.name: TASK})
    runner = RoundRunner(archive, ledger, attendance, parties, _SCRIPT_SECONDS)
    defaults = Defaults(
        PARTIES, "dealer", TABLE, 1.0, 0.0, 1e-3, 0.6, 0, 1, 1, MAX_K, {TASK.name: TASK}
    )
    labels = LabelServicer(archive, ledger, attendance, runner, parties, defaults, 4)
    servicers: dict[str, object] = {
        "LabelService": labels,
        "AgentService": attendance,
        "ModelService": ModelServicer(archive, 1e-3),
    }
    try:
        outcome = await play(
            script,
            _COORDINATOR,
            lambda method: servicers[method.containing_service.name],
            coordinator_caller,
            beside=["Attend", "FetchQueries"],
        )
    finally:
        await labels.stop()
    if labels._reading or labels._places._taken or labels._open:
        raise Finding("a request is never over")
    if not 0 <= (runner._round_trip or 0.0) < math.inf:
        raise Finding("a party decides by what groups are chosen")
    return outcome


def coordinator_caller(method: MethodDescriptor, number: int) -> Identity:
    if method.containing_service.name == "AgentService":
        return Identity(Role.AGENT, (*AGENTS, "eve")[number % 4])
    return Identity(Role.CLIENT, f"client-{number % 2}")


def capabilities(**changes: Any) -> agent_pb2.Capabilities:
    """What an agent of the kept rounds can answer."""
    given: dict[str, Any] = {
        "classes": 3,
        "query_dtype": common_pb2.DTYPE_FLOAT32,
        "query_shape": [2],
        "ballots": [common_pb2.BALLOT_KIND_KNN_COUNT, common_pb2.BALLOT_KIND_KNN_FREQUENCY],
        "k": 5,
    }
    return agent_pb2.Capabilities(
        offers=[common_pb2.Offer(**{**given, **changes}), agreement.offer_of(TASK)],
        min_sigma=0.5,
        min_quorum=1,
        ledger_id="0123456789abcdef" * 2,
        process_id="fedcba9876543210" * 2,
    )


def coordinator_seeds() -> list[bytes]:
    Request, names = agent_pb2.AttendRequest, _COORDINATOR_NAMES
    rows = tensors.to_tensor(np.ones((4, 2), np.float32))
    many = [common_pb2.BALLOT_KIND_MULTI_LABEL, common_pb2.BALLOT_KIND_ONE_HOT]
    plans = [
        (capabilities(), label_pb2.LabelPlan(classes=3, sigma=1.0)),
        (
            capabilities(),
            label_pb2.LabelPlan(classes=3, sigma=2.0, quorum=2, collusion=1, verified=True),
        ),
        (
            capabilities(),
            label_pb2.LabelPlan(classes=3, ballot=common_pb2.BALLOT_KIND_KNN_FREQUENCY, delta=1e-5),
        ),
        (
            capabilities(ballots=many, k=0),
            label_pb2.LabelPlan(classes=3, ballot=many[0], tau=1, request_id="again"),
        ),
        (capabilities(), label_pb2.LabelPlan(task=TASK.name, task_digest=TASK.digest, sigma=1.0)),
        (
            capabilities(ballots=many, k=0),
            label_pb2.LabelPlan(
                classes=3, ballot=many[1], engine=common_pb2.ENGINE_CRYPTEN_LOG_REDUCTION
            ),
        ),
    ]
    seeds = []
    for offer, plan in plans:
        calls = [
            call(
                names,
                "Attend",
                Request(capabilities=offer),
                Request(prepared=agent_pb2.Prepared(round_id=ROUND)),
                Request(submitted=agent_pb2.Submitted(round_id=ROUND, upload_bytes=9)),
                caller=number,
            )
            for number in range(len(AGENTS))
        ]
        ask = call(
            names,
            "RequestLabels",
            label_pb2.RequestLabelsRequest(plan=plan, queries=rows),
            label_pb2.RequestLabelsRequest(queries=rows),
        )
        look = [
            call(names, "GetRound", label_pb2.GetRoundRequest(round_id=ROUND)),
            call(names, "CancelRound", label_pb2.CancelRoundRequest(round_id=ROUND)),
            call(names, "ListRounds", label_pb2.ListRoundsRequest()),
            call(names, "GetService", label_pb2.GetServiceRequest()),
            call(
                names,
                "PlanRound",
                label_pb2.PlanRoundRequest(
                    plan=plan, query_dtype=common_pb2.DTYPE_FLOAT32, query_shape=[2]
                ),
            ),
            call(names, "GetTask", common_pb2.GetTaskRequest(name=TASK.name)),
            call(names, "GetTask", common_pb2.GetTaskRequest(digest=TASK.digest)),
        ]
        seeds.append(Script(0, (*calls, ask, *look)).encode())
        shares = party_pb2.LabelShares(shares=bytes(2 * 8))
        statistics = party_pb2.AggregateStatistics(
            rounds=3, bytes_sent=9, dealer_bytes=9, seconds=0.1, round_trip_seconds=0.01
        )
        answers = [
            party_pb2.AggregateResponse(shares=shares),
            party_pb2.AggregateResponse(statistics=statistics),
        ]
        holdings = [party_pb2.Holding(agent=agent, submission_id=b"1") for agent in AGENTS]
        lies = [
            call(names, "parties count", *answers),
            call(names, "parties hold", party_pb2.ListHoldingsResponse(holdings=holdings)),
        ]
        seeds.append(Script(0, (*calls, ask, *lies)).encode())
    declined = agent_pb2.Declined(round_id=ROUND, error="POLICY_REFUSED", reason="no")
    offer = capabilities(ballots=many, k=0)
    attend = call(names, "Attend", Request(capabilities=offer), *[Request(declined=declined)] * 3)
    fetch = call(names, "FetchQueries", agent_pb2.FetchQueriesRequest(round_id=ROUND))
    seeds.append(Script(0, (attend, replace(ask, caller=8), fetch)).encode())
    train = model_pb2.TrainRequest(round_ids=[_DONE], seed=3, unlabelled=rows)
    inputs = model_pb2.PredictRequest(version=1, inputs=rows)
    trained = [
        call(names, "Train", train, model_pb2.TrainRequest(unlabelled=rows)),
        call(names, "ListModels", model_pb2.ListModelsRequest()),
        call(names, "GetModel", model_pb2.GetModelRequest(version=1)),
        call(names, "Predict", inputs),
    ]
    seeds += [Script(0, tuple(trained)).encode(), Script(0, (trained[3],)).encode()]
    seeds.append(Script(0, (trained[0],)).encode())
    return seeds


# Enrolment

_ENROLMENT = methods(enrolment_pb2)
_TOKEN = "one-time-token"


@contextlib.contextmanager
def _enrolment(folder: Path) -> Iterator[Callable[[Script], Awaitable[str]]]:
    tokens = Tokens(folder / "enrolment.db")
    tokens._db.execute(
        "INSERT INTO tokens (digest, name, expires_at) VALUES (?, 'ann', 1e12)", (_digest(_TOKEN),)
    )
    root = CertificateAuthority.create(folder / "ca")
    authority = root.delegate_agents(folder / "agents")
    servicers = {
        "Enrol": EnrolmentServicer(tokens, authority),
        "Renew": RenewalServicer(authority, revoked=["gone"]),
    }

    async def start(script: Script) -> str:
        outcome = await play(
            script,
            _ENROLMENT,
            lambda method: servicers[method.name],
            lambda _, number: Identity(Role.AGENT, ("ann", "gone")[number % 2]),
        )
        tokens._db.execute("UPDATE tokens SET used_at = NULL")
        return outcome

    yield start
    tokens.close()


def enrolment_seeds() -> list[bytes]:
    request = enrolment_pb2.EnrolRequest(token=_TOKEN, csr_der=csrs()[0])
    renewal = enrolment_pb2.RenewRequest(csr_der=csrs()[0])
    names = [method.name for method in _ENROLMENT]
    again = [call(names, "Renew", renewal, caller=number) for number in (0, 1)]
    return [Script(0, (call(names, "Enrol", request),) * 2).encode(), Script(0, (*again,)).encode()]


# An agent, and what a hostile coordinator tells it

_AGENT_NAMES = ["Attend", "FetchQueries", "GetTask"]
_AGENT_TYPES = [
    agent_pb2.AttendResponse,
    agent_pb2.FetchQueriesResponse,
    common_pb2.GetTaskResponse,
]


@contextlib.contextmanager
def _agent(folder: Path) -> Iterator[Callable[[Script], Awaitable[str]]]:
    from mpc_vote.learning.voters.knn import KnnVoter

    points = np.random.default_rng(1).normal(size=(9, 2)).astype(np.float32)
    voter = KnnVoter(points, np.arange(9) % 3, 3, 5)
    settings = AgentSettings.model_construct(
        parties=dict.fromkeys(PARTIES, "localhost:1"),
        dealer_name="dealer",
        min_sigma=0.0,
        min_quorum=1,
        min_collusion=0,
        max_queries=10_000,
    )
    ledgers = count()

    async def start(script: Script) -> str:
        ledger = Ledger(folder / f"ledger-{next(ledgers)}.db", Budget(None, 1e6, 1e-3))
        try:
            return await _attend(script, Policy("ann", settings, ledger), voter, folder)
        finally:
            ledger.close()
            ledger.path.unlink()

    yield start


async def _attend(script: Script, policy: Policy, voter: Voter, folder: Path) -> str:
    """Plays the coordinator's side; an announcement may be given the digest of its queries."""
    fetched = said(script, _AGENT_NAMES, "FetchQueries", agent_pb2.FetchQueriesResponse)
    announced = said(script, _AGENT_NAMES, "Attend", agent_pb2.AttendResponse)
    tasks = said(script, _AGENT_NAMES, "GetTask", common_pb2.GetTaskResponse)
    if script.setup & 1:
        _agree(announced, fetched)
    replies: asyncio.Queue[Any] = asyncio.Queue()

    class Attending(Stream):
        async def write(self, message: Message) -> None:
            replies.put_nowait(message)

        async def read(self) -> Any:
            if len(self._responses) < len(announced):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_EXCHANGE_SECONDS):
                        outcomes.append(await replies.get())
            if self._responses:
                return self._responses.pop(0)
            return grpc.aio.EOF

    outcomes: list[Any] = []

    async def submit(requests: Any, **_: Any) -> Any:
        async for _ in requests:
            pass
        return party_pb2.SubmitSharesResponse()

    async def check(*_: Any, **__: Any) -> Any:
        return SimpleNamespace(status=1)

    async def get_task(*_: Any, **__: Any) -> Any:
        if not tasks:
            raise failure()
        return tasks[0]

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    coordinator: Any = Channel(
        {
            "Attend": lambda: Attending(announced),
            "FetchQueries": lambda *_, **__: Stream(fetched),
            "GetTask": get_task,
        }
    )
    coordinator.renewed = never
    reached: Any = Channel({"SubmitShares": submit, "Check": check})
    can = capabilities()
    servings = [
        Serving(can.offers[0], voter, "knn"),
        Serving(can.offers[1], voter, "knn", TASK),
    ]
    parties = dict.fromkeys(PARTIES, reached)
    agent = Agent("ann", policy, servings, can, coordinator, parties, folder)
    await agent._session()
    while not replies.empty():
        outcomes.append(replies.get_nowait())
    told = []
    for reply in outcomes:
        if reply.declined.error in ("INTERNAL", "VOTER_FAILED"):
            raise Finding(f"the agent failed: {reply.declined.reason}")
        if reply.ByteSize() > 16 << 10:
            raise Finding(f"a reply of {reply.ByteSize():,} bytes")
        told.append(reply.declined.error or reply.WhichOneof("message"))
    if agent._rounds or agent._promised:
        raise Finding("a round is never over")
    return " ".join(told[-3:])


def _agree(announced: Sequence[Any], fetched: Sequence[Any]) -> None:
    with contextlib.suppress(VoteError, ValueError, DecodeError):
        digest = tensors.digest_of(
            np.concatenate([tensors.from_tensor(f.queries) for f in fetched])
        )
        for response in announced:
            if response.HasField("announcement"):
                spec = common_pb2.RoundSpec.FromString(response.announcement.spec)
                spec.queries_digest = digest
                response.announcement.spec = spec.SerializeToString()


def _agent_seeds() -> list[bytes]:
    Response = agent_pb2.AttendResponse
    rows = tensors.to_tensor(np.ones((5, 2), np.float32))
    roster = [common_pb2.RosterEntry(agent=agent, k=5) for agent in AGENTS]
    seeds = []
    count, frequency = common_pb2.BALLOT_KIND_KNN_COUNT, common_pb2.BALLOT_KIND_KNN_FREQUENCY
    same, other = (
        {"task": TASK.name, "task_digest": digest} for digest in (TASK.digest, bytes(32))
    )
    theirs = call(_AGENT_NAMES, "GetTask", common_pb2.GetTaskResponse(task=agreement.to_wire(TASK)))
    for ballot, verified, task in (
        (count, False, {}),
        (count, True, {}),
        (frequency, False, {}),
        (count, True, same),
        (count, True, other),
    ):
        spec = spec_message(ballot=ballot, roster=roster, verified=verified, **task)
        announcement = agent_pb2.RoundAnnouncement(spec=spec.SerializeToString())
        heard = [
            Response(welcome=agent_pb2.Welcome()),
            Response(announcement=announcement),
            Response(go=agent_pb2.Go(round_id=ROUND)),
        ]
        closed = Response(closed=agent_pb2.Closed(round_id=ROUND))
        fetch = call(_AGENT_NAMES, "FetchQueries", agent_pb2.FetchQueriesResponse(queries=rows))
        seeds.append(Script(1, (call(_AGENT_NAMES, "Attend", *heard), fetch, theirs)).encode())
        ended = call(_AGENT_NAMES, "Attend", *heard[:2], closed, *heard[1:])
        seeds.append(Script(1, (ended, fetch)).encode())
    return seeds


def _mutate_agent(data: bytes, other: bytes, rng: Any) -> bytes:
    """The spec travels as bytes inside: it is changed as the message that it is."""
    script = Script.decode(data)
    if rng.random() < 0.5:
        return of_scripts(*_AGENT_TYPES)(data, other, rng)
    calls = []
    for one in script.calls:
        messages = []
        for message in one.messages:
            for response in decoded(agent_pb2.AttendResponse, [message]) if not one.method else []:
                if response.HasField("announcement") and rng.random() < 0.7:
                    spec = response.announcement.spec
                    inner = Script(calls=(Call(0, 0, (spec,)),)).encode()
                    changed = Script.decode(of_scripts(common_pb2.RoundSpec)(inner, inner, rng))
                    specs_ = [m for c in changed.calls for m in c.messages]
                    response.announcement.spec = specs_[0] if specs_ else b""
                    message = response.SerializeToString()
            messages.append(message)
        calls.append(Call(one.method, one.caller, tuple(messages)))
    return Script(script.setup, tuple(calls)).encode()


# A client, and what a hostile coordinator answers

_CLIENT_NAMES = ["label", "train", "model", "predict", "task", "plan"]
_CLIENT_TYPES = [
    label_pb2.RequestLabelsResponse,
    model_pb2.TrainResponse,
    model_pb2.GetModelResponse,
    model_pb2.PredictResponse,
    common_pb2.GetTaskResponse,
    label_pb2.PlanRoundResponse,
]


@contextlib.contextmanager
def _client(_: Path) -> Iterator[Callable[[Script], Awaitable[str]]]:
    from mpc_vote.proto.mpcvote.v1 import label_pb2_grpc, model_pb2_grpc

    async def start(script: Script) -> str:
        given: dict[str, list[Message]] = {
            name: said(script, _CLIENT_NAMES, name, kind)
            for name, kind in zip(_CLIENT_NAMES, _CLIENT_TYPES, strict=True)
        }

        async def predict(*_: Any, **__: Any) -> Any:
            if not given["predict"]:
                raise failure()
            return given["predict"][0]

        async def task(*_: Any, **__: Any) -> Any:
            if not given["task"]:
                raise failure()
            return given["task"][0]

        async def plan(*_: Any, **__: Any) -> Any:
            if not given["plan"]:
                raise failure()
            return given["plan"][0]

        channel: Any = Channel(
            {
                "GetTask": task,
                "PlanRound": plan,
                "RequestLabels": lambda *_, **__: Stream(given["label"]),
                "Train": lambda *_, **__: Stream(given["train"]),
                "GetModel": lambda *_, **__: Stream(given["model"]),
                "Predict": predict,
            }
        )
        client = AsyncLabelClient.__new__(AsyncLabelClient)
        client._who = "The coordinator"
        client._labels = label_pb2_grpc.LabelServiceStub(channel)
        client._models = model_pb2_grpc.ModelServiceStub(channel)
        rows = np.ones((4, 2), np.float32)
        outcomes = []
        for work in (
            lambda: _label(client, rows),
            lambda: _label(client, rows, TASK),
            lambda: client.task(TASK.name),
            lambda: _plan(client),
            lambda: _train(client),
            client.model,
            lambda: _predict(client, rows),
        ):
            try:
                await work()
                outcomes.append("accepted")
            except VoteError as error:
                outcomes.append(refused(error))
        return " ".join(outcomes)

    yield start


async def _label(client: AsyncLabelClient, rows: Any, task: Task | None = None) -> LabelResult:
    result = await client.label(rows, Plan(classes=3, task=task))
    if task is not None and len(result.names or []) != len(rows):
        raise Finding("labels have no names")
    if len(result.labels) != len(rows):
        raise Finding(f"{len(result.labels)} labels for {len(rows)} queries")
    return result


async def _plan(client: AsyncLabelClient) -> None:
    planned = await client.plan(4, Plan(classes=3))
    if not 0 <= planned.forecast(0.7).low <= planned.forecast(0.7).high <= 1:
        raise Finding("a forecast is no probability")


async def _predict(client: AsyncLabelClient, rows: Any) -> None:
    if len(await client.predict(rows)) != len(rows):
        raise Finding("predictions are missing")


async def _train(client: AsyncLabelClient) -> None:
    await client.train()


def _client_seeds() -> list[bytes]:
    Response, names = label_pb2.RequestLabelsResponse, _CLIENT_NAMES
    completed = label_pb2.RoundCompleted(round_id=ROUND, contributors=3)
    told = [
        Response(opened=label_pb2.RoundOpened(spec=spec_message(), warnings=["w"])),
        Response(progress=label_pb2.Progress(stage=label_pb2.STAGE_VOTING, done=1, total=3)),
    ]
    seeds = []
    for labels in (
        [label_pb2.Labels(width=1, values=[0, 1, 2, 0])],
        [label_pb2.Labels(width=2, values=[0, 1] * 2), label_pb2.Labels(offset=2, width=2)],
        [label_pb2.Labels(offset=n, width=1, values=[n % 3]) for n in range(4)],
    ):
        events = [*told, *(Response(labels=one) for one in labels), Response(completed=completed)]
        calls = (
            call(names, "label", *events),
            call(
                names,
                "train",
                model_pb2.TrainResponse(progress=model_pb2.TrainProgress(step=1, steps=2)),
                model_pb2.TrainResponse(model=model_pb2.Model(version=1)),
            ),
            call(
                names,
                "model",
                model_pb2.GetModelResponse(
                    model=model_pb2.Model(version=1, sha256=hashlib.sha256(b"abc").digest())
                ),
                model_pb2.GetModelResponse(chunk=b"abc"),
            ),
            call(names, "predict", model_pb2.PredictResponse(version=1, labels=[0, 1, 2, 0])),
            call(names, "task", common_pb2.GetTaskResponse(task=agreement.to_wire(TASK))),
            call(
                names,
                "plan",
                label_pb2.PlanRoundResponse(spec=spec_message(), cost=common_pb2.Cost(delta=0.1)),
            ),
        )
        seeds.append(Script(0, calls).encode())
    return seeds


SERVICES = [
    Target("dealer", opened(_dealer), dealer_seeds, of_scripts(*map(type_of, _DEALER))),
    Target("party", opened(_party), party_seeds, of_scripts(*_PARTY_TYPES)),
    Target("coordinator", opened(_coordinator), coordinator_seeds, of_scripts(*_COORDINATOR_TYPES)),
    Target("enrolment", opened(_enrolment), enrolment_seeds, of_scripts(*map(type_of, _ENROLMENT))),
    Target("agent", opened(_agent), _agent_seeds, _mutate_agent),
    Target(
        "links",
        links.opened(Loop),
        links.link_seeds,
        of_bytes((frames.PING, frames.END, frames.LAST)),
    ),
    Target("client", opened(_client), _client_seeds, of_scripts(*_CLIENT_TYPES)),
]
