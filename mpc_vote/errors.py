"""The catalogue of everything that can go wrong for a caller.

Each entry has a stable name, a gRPC status and a sentence that says what happened and what to do.
An error crosses the wire as `google.rpc.Status` with an `ErrorInfo` (name and values), and a
`BadRequest`, `QuotaFailure` or `RetryInfo` where there is a field, a quota or a time to name.
Values are public by construction: nothing about data, ballots, shares or keys is ever put in one.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Mapping
from itertools import islice
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from mpc_vote.proto.mpcvote.v1 import errors_pb2

_DOMAIN = "mpc-vote"
_STATUS_KEY = "grpc-status-details-bin"
_TYPE_URL = "type.googleapis.com/google.rpc."
# An error travels in metadata, which has little room, several times over: what a caller sent is not
# sent back to it at full length.
MAX_VALUE_CHARACTERS = 2_000
_MAX_RETRY_SECONDS = 86_400.0
_MAX_VALUES = 16

_BAD = grpc.StatusCode.INVALID_ARGUMENT
_STATE = grpc.StatusCode.FAILED_PRECONDITION
_QUOTA = grpc.StatusCode.RESOURCE_EXHAUSTED

M = TypeVar("M", bound=Message)


class ErrorKind(enum.Enum):
    """Name -> (status, sentence). The name is the contract; the sentence is for people."""

    # the request
    PLAN_MISSING = (_BAD, "The first message carries no plan. Send one with the number of classes.")
    QUERIES_INCOMPLETE = (
        _BAD,
        "{got} queries have arrived, and the plan announces {want}. Send each row once.",
    )
    QUERIES_EMPTY = (_BAD, "The batch has no queries. Send at least one row.")
    QUERIES_TOO_MANY = (_BAD, "{got} queries were sent, at most {limit} fit. Send fewer at a time.")
    ROW_TOO_LARGE = (_BAD, "One query takes {got} bytes, at most {limit} fit. Send features.")
    QUERIES_TOO_LARGE = (_BAD, "The queries take over {limit} bytes. Send fewer at a time.")
    QUERIES_DTYPE = (
        _BAD,
        "The queries have dtype {got}, the agents take {want}. Convert them first.",
    )
    QUERIES_SHAPE = (
        _BAD,
        "A query has shape {got}, the agents take {want}. Reshape the batch to (rows, *{want}).",
    )
    QUERIES_NOT_FINITE = (
        _BAD,
        "Query {row} holds NaN or infinity. Clean the batch and send it again.",
    )
    QUERIES_RANGE = (
        _BAD,
        "Query {row} holds a number larger than {limit:g} in absolute value. Scale the batch like "
        "the agents' data and send it again.",
    )
    TENSOR_MALFORMED = (
        _BAD,
        "A tensor of dtype {dtype} and shape {shape} needs {want} bytes, got {got}. "
        "Send little-endian elements in C order.",
    )
    CLASSES_RANGE = (_BAD, "{got} classes were asked for; choose from {low} to {high}.")
    CLASSES_MISMATCH = (
        _BAD,
        "{got} classes were asked for, but the connected agents answer {want}. "
        "Ask for that number.",
    )
    METHOD_UNKNOWN = (_BAD, "{field} {got!r} is unknown. Choose one of: {want}.")
    BALLOT_UNSUPPORTED = (
        _STATE,
        "No connected agent casts {got} ballots. Available: {want}.",
    )
    SIGMA_RANGE = (_BAD, "sigma must be a positive finite number of votes, got {got}.")
    LEAD_DROWNED = (
        _STATE,
        "{why} Nobody was asked; ask all the same with --yes, in Python with Plan(agreement=None).",
    )
    AGREEMENT_RANGE = (_BAD, "The agreement {got} is no part of the votes; choose from 0 to 1.")
    SIGMA_BELOW_POLICY = (
        _BAD,
        "sigma {got:g} is below the minimum that {who} accepts, {want:g}. Ask for at least that.",
    )
    DELTA_RANGE = (_BAD, "delta must be at least {low} and below 1, got {got}.")
    TAU_RANGE = (_BAD, "tau must be from 1 to the number of attributes ({high}), got {got}.")
    QUORUM_RANGE = (
        _BAD,
        "A quorum of {got} does not fit {roster} agents with {collusion} assumed to collude. "
        "Choose a quorum of at most {roster}, and a collusion bound below the quorum.",
    )
    AGENTS_UNWILLING = (
        _STATE,
        "The policies of the connected agents leave {got} for a quorum of {want}: {why}. "
        "Ask for what they accept, start more agents, or have their owners relax the policies.",
    )
    K_RANGE = (
        _STATE,
        "The agents that could answer count {got} neighbours, this service takes {low} to {high}. "
        "Start agents with another --k, or the coordinator with other bounds.",
    )
    TIMEOUT_RANGE = (_BAD, "answer_seconds must be from {low} to {high}, got {got}.")
    REQUEST_ID_REUSED = (
        grpc.StatusCode.ALREADY_EXISTS,
        "request_id {got!r} was used for another batch or plan. Choose a new one.",
    )
    MESSAGE_UNREADABLE = (
        _BAD,
        "A message to or from {method} can't be read. Check that both sides run the same version.",
    )
    NAME_INVALID = (
        _BAD,
        "{field} {got!r} is not a valid name. Use lower-case letters, digits, dashes.",
    )
    SPEC_INVALID = (_BAD, "The round's spec is not acceptable: {why}.")
    INPUT_UNFIT = (
        _BAD,
        "These are no inputs of task {task}: {why}. Read them with mpc_vote.data.readers, or with "
        "`mpc-vote label --task`.",
    )
    TASK_CONTRADICTED = (_BAD, "{field} is {got}, and task {task} has {want}. Leave it out.")
    TASK_UNKNOWN = (
        grpc.StatusCode.NOT_FOUND,
        "{who} has no task {task}, but {want}. Name one of these, or have its operator serve it "
        "(--task).",
    )
    TASK_DIFFERS = (
        _STATE,
        "Task {task} is not the same for {who}: {why}. Use one file everywhere.",
    )
    RANGE_OVERFLOW = (
        _BAD,
        "The totals of this round need {need} bits, {have} fit. Lower sigma or k, or "
        "ask for another engine.",
    )

    # who calls
    UNAUTHENTICATED = (
        grpc.StatusCode.UNAUTHENTICATED,
        "The certificate names no role of this system. Use one made by `mpc-vote certs`.",
    )
    ROLE_REFUSED = (
        grpc.StatusCode.PERMISSION_DENIED,
        "{who} may not call {method}. It is for: {want}.",
    )
    CERTIFICATE_REVOKED = (
        grpc.StatusCode.PERMISSION_DENIED,
        "The certificate has been revoked. Ask the authority for a new one.",
    )
    CERTIFICATE_EXPIRED = (
        grpc.StatusCode.UNAUTHENTICATED,
        "The certificate has expired since the connection was made. Renew it and connect again.",
    )
    AGENT_REVOKED = (
        grpc.StatusCode.PERMISSION_DENIED,
        "Agent {agent} has been revoked. Ask the operator of the coordinator.",
    )
    LEDGER_CHANGED = (
        _STATE,
        "Agent {agent} came with ledger {ledger}, which is not the one known here and may lack "
        "earlier spends. Restore its data folder; if that is lost, the coordinator's operator can "
        "accept the new ledger (--accept-ledgers).",
    )
    SEAT_TAKEN = (
        grpc.StatusCode.ALREADY_EXISTS,
        "Agent {agent} is already connected, from another process. If only one was started, "
        "somebody else has its certificate and ledger; after a crash it can connect again within a "
        "minute.",
    )
    NAME_REFUSED = (
        grpc.StatusCode.PERMISSION_DENIED,
        "{who} is not part of {what}. Check its configuration and certificate.",
    )
    TOKEN_REFUSED = (
        grpc.StatusCode.PERMISSION_DENIED,
        "The enrolment token is not valid: it is unknown, used or expired. Ask the coordinator's "
        "operator for a new one.",
    )
    CSR_REFUSED = (
        _BAD,
        "The certificate request can't be used: {why}. Send one in DER, signed with its own key.",
    )
    ENROLMENT_BUSY = (
        grpc.StatusCode.UNAVAILABLE,
        "Too many agents are enrolling at the same time. Ask again in a moment.",
    )
    RENEWAL_ELSEWHERE = (
        _STATE,
        "This coordinator renews certificates of agents that enrolled with it. Ask whoever issued "
        "this certificate for a new one.",
    )

    # the state of the service
    AGENTS_ABSENT = (
        grpc.StatusCode.UNAVAILABLE,
        "No agent is connected. Start the agents, then ask again.",
    )
    COORDINATOR_UNREACHABLE = (
        grpc.StatusCode.UNAVAILABLE,
        "{who} does not answer ({why}). Check that it runs there and that the address and its "
        "certificate are right.",
    )
    TASK_MISSING = (
        _STATE,
        "The attending agents answer tasks only: {want}. Name one of them (--task).",
    )
    TASK_UNATTENDED = (
        grpc.StatusCode.UNAVAILABLE,
        "No attending agent answers task {task}. Start agents with it, then ask again.",
    )
    PARTY_UNREACHABLE = (
        grpc.StatusCode.UNAVAILABLE,
        "{who} does not answer ({why}). Check that it runs and that the address and its "
        "certificate are right.",
    )
    SERVICE_BUSY = (_QUOTA, "{got} requests are under way, which is the limit. Ask again later.")
    SHUTTING_DOWN = (grpc.StatusCode.UNAVAILABLE, "{who} is shutting down. Ask again later.")
    ROUND_UNKNOWN = (grpc.StatusCode.NOT_FOUND, "There is no round {round}. List the rounds.")
    ROUND_CLOSED = (_STATE, "Round {round} takes no more shares: {why}.")
    ROUND_CANCELLED = (
        grpc.StatusCode.CANCELLED,
        "Round {round} was cancelled by its client before it was charged. Ask for a new one.",
    )
    ROUND_SPENT = (
        _STATE,
        "Round {round} was opened before and can't be opened again. Ask for a new one.",
    )
    ROUND_AGGREGATED = (
        _STATE,
        "Round {round} was aggregated before. Shares are counted once: ask for a new round.",
    )
    SPEC_MISMATCH = (
        grpc.StatusCode.ABORTED,
        "The spec of round {round} differs from the one opened here. Ask for a new round.",
    )
    SHARES_MALFORMED = (_BAD, "The shares for round {round} are malformed: {why}.")
    CONTRIBUTOR_UNKNOWN = (
        _STATE,
        "No share of agent {agent} with that submission is held for round {round}.",
    )
    QUORUM_MISSED = (
        grpc.StatusCode.ABORTED,
        "Round {round} ended with {got} of {want} needed agents. {why}",
    )
    QUORUM_UNAFFORDABLE = (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "Round {round} needs {want} agents and no more than {got} can pay for it: {why}. "
        "Fewer queries or a larger sigma cost less.",
    )
    COMMITTEE_DISAGREES = (
        grpc.StatusCode.ABORTED,
        "The parties of round {round} do not agree ({why}). It gave no labels: ask again.",
    )
    ENDED_BY = (
        grpc.StatusCode.ABORTED,
        "{who} ended the session; find the cause before you ask again. It reported: {why}",
    )
    ENGINE_MISSING = (
        _STATE,
        "{who} has no {package}, which this engine needs. Ask for the engine table, or have its "
        "operator install CrypTen as docs/deploy.md says.",
    )
    DEAL_SPENT = (
        _STATE,
        "Preprocessing for session {session} was dealt to {who} before. It is used once, ever.",
    )
    DEAL_ENDED = (
        grpc.StatusCode.ABORTED,
        "The dealer has dropped session {session}: {why}. Ask for the round again.",
    )
    PREPROCESSING_LATE = (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "The dealer's preprocessing did not come within {seconds:g} s. Check the dealer and the "
        "network to it; a slow one may need more time (exchange_seconds) or a larger pool.",
    )
    DEALER_CAUGHT = (
        grpc.StatusCode.DATA_LOSS,
        "The dealer dealt wrong preprocessing for session {session}: {why}. Nothing was computed "
        "with it. It cheats, or runs another version than the parties; find the cause before it is "
        "used again.",
    )
    DEALER_REFUSED = (
        _STATE,
        "Party {who} has caught the dealer dealing wrong preprocessing and takes no more of it. "
        "Replace the dealer or find the cause; then its operator removes {path} and the round can "
        "be asked for again.",
    )
    DEAL_INVALID = (_BAD, "The request to the dealer is malformed: {why}.")
    ANSWER_LATE = (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "{who} did not answer in time. Ask again; if it persists, check its machine and network.",
    )
    ANSWER_MALFORMED = (
        grpc.StatusCode.DATA_LOSS,
        "{who} sent an invalid answer: {why}. Check that both sides run the same version.",
    )
    DEADLINE = (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "{what} did not finish within {seconds:g} s. Ask again, or allow more time.",
    )
    ROUND_FAILED = (grpc.StatusCode.ABORTED, "Round {round} failed: {why} Ask for a new round.")
    VOTER_FAILED = (
        _STATE,
        "The agent's voter {voter} can't vote on these queries: {why}. Its log says more.",
    )
    POLICY_REFUSED = (_STATE, "The agent's policy refuses the round: {why}.")
    BUDGET_EXHAUSTED = (
        _QUOTA,
        "The {level}-level privacy budget of {who} is too small: {why}. "
        "Ask for fewer queries or more noise.",
    )

    # the model
    MODEL_UNKNOWN = (grpc.StatusCode.NOT_FOUND, "There is no model version {version}. Train one.")
    TRAINING_BUSY = (_QUOTA, "A model is being trained. Ask again later.")
    NOTHING_LABELLED = (
        _STATE,
        "No complete round {of}has labels to train on. Ask for labels first.",
    )
    TOO_FEW_POINTS = (
        _STATE,
        "A model can't learn from a single point. Ask for more labels, or send unlabelled points.",
    )
    ROUNDS_UNLIKE = (
        _BAD,
        "Rounds of different classes, ballots or query shapes can't train one model: {why}.",
    )
    ROUNDS_TOO_LARGE = (
        _BAD,
        "The queries of these rounds take {got} bytes as float32, a model learns from at most "
        "{limit}. Name fewer rounds.",
    )
    UNLABELLED_TOO_MANY = (
        _BAD,
        "{got} unlabelled points were sent; with {labels} labels at most {limit} fit. Send fewer, "
        "or learn from fewer rounds.",
    )
    LEARNING_MISSING = (
        _STATE,
        "The coordinator lacks {package}, so it trains and uses no models. Train on the labels "
        "yourself, or have its operator install mpc-vote[learning].",
    )
    STUDENT_FAILED = (
        _STATE,
        "The coordinator's student {student} can't do this: {why}. Its log says more.",
    )
    FEATURES_MISSING = (
        _STATE,
        "The coordinator can't make the features of task {task} ({why}). Its operator names their "
        "weights with --weights {task}=PATH; its log says more.",
    )
    FEATURES_UNFIT = (_BAD, "The feature map does not suit the points: {why}. Name another.")
    MULTI_LABEL_MODEL = (_BAD, "A model can't be trained on multi-label rounds.")

    # set-up
    PORT_IN_USE = (
        grpc.StatusCode.UNAVAILABLE,
        "Can't listen on {address}: it is in use, or not this machine's address. Choose another.",
    )
    INTERNAL = (
        grpc.StatusCode.INTERNAL,
        "{who} failed unexpectedly ({why}). Its log says more.",
    )

    @property
    def status(self) -> grpc.StatusCode:
        """The gRPC status that the error travels under."""
        return self.value[0]

    @property
    def sentence(self) -> str:
        """The template of the sentence."""
        return self.value[1]


class VoteError(Exception):
    """An entry of the catalogue with its values filled in."""

    def __init__(
        self,
        kind: ErrorKind,
        *,
        field: str = "",
        retry_after: float | None = None,
        **values: object,
    ) -> None:
        self.kind = kind
        self.field = field
        self.retry_after = retry_after
        self.message = kind.sentence.format(
            field=field, **{key: _cut(v) if isinstance(v, str) else v for key, v in values.items()}
        )
        self.values: Mapping[str, str] = {key: _cut(str(v)) for key, v in values.items()}
        super().__init__(self.message)

    @property
    def name(self) -> str:
        """The stable name."""
        return self.kind.name

    def to_status(self) -> errors_pb2.Status:
        """The error as it crosses the wire."""
        status = errors_pb2.Status(code=self.kind.status.value[0], message=self.message)
        info = errors_pb2.ErrorInfo(reason=self.name, domain=_DOMAIN)
        info.metadata.update(self.values)
        _attach(status, info)
        if self.field:
            violation = errors_pb2.BadRequest.FieldViolation(
                field=self.field, description=self.message
            )
            _attach(status, errors_pb2.BadRequest(field_violations=[violation]))
        if self.kind.status is _QUOTA:
            quota = errors_pb2.QuotaFailure.Violation(
                subject=self.values.get("level", "rounds"), description=self.message
            )
            _attach(status, errors_pb2.QuotaFailure(violations=[quota]))
        if self.retry_after is not None:
            retry = errors_pb2.RetryInfo()
            retry.retry_delay.FromNanoseconds(int(self.retry_after * 1e9))
            _attach(status, retry)
        return status

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """What a server attaches so that `from_rpc` finds the error again."""
        return ((_STATUS_KEY, self.to_status().SerializeToString()),)

    def add(self, sentence: str) -> None:
        """Says one thing more."""
        self.message = f"{self.message} {sentence}"
        self.args = (self.message,)

    @classmethod
    def from_rpc(
        cls,
        error: grpc.RpcError,
        who: str,
        unreachable: ErrorKind = ErrorKind.PARTY_UNREACHABLE,
    ) -> VoteError:
        """The error that a peer sent; where it sent none, what the failed call means:
        `unreachable`, if it is that."""
        if (rebuilt := _rebuild(cls, error)) is not None:
            return rebuilt
        answered = isinstance(error, _Answered)
        code = error.code() if answered else grpc.StatusCode.UNKNOWN
        text = (error.details() or "") if answered else str(error)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return cls(ErrorKind.ANSWER_LATE, who=who)
        return cls(unreachable, who=who, why=_short(code, text))

    @classmethod
    def relayed(cls, error: grpc.RpcError, who: str) -> VoteError:
        """As `from_rpc`, but the sentence says whose it is: whom it names may be somebody else."""
        said = _rebuild(cls, error)
        if said is None:
            return cls.from_rpc(error, who)
        said.message = _cut(f"{who} says: {said.message}", 2 * MAX_VALUE_CHARACTERS)
        said.args = (said.message,)
        return said

    @classmethod
    def quoted(cls, error: grpc.RpcError, who: str) -> VoteError:
        """As `from_rpc`, where the error will be passed on: what a peer says is passed on as its
        own statement.

        Under a name of the peer's choice it would pass for what this process has found, blame
        somebody else, or have a client come back to a round that was paid for.
        """
        said = _rebuild(cls, error)
        return cls.from_rpc(error, who) if said is None else said._quote(who)

    @classmethod
    def quoted_status(cls, status: bytes, who: str) -> VoteError:
        """As `quoted`, of a status as `to_status` makes it that came another way than by gRPC."""
        parsed = errors_pb2.Status()
        with contextlib.suppress(DecodeError):
            parsed.ParseFromString(status)
        said = _restored(cls, parsed)
        if said is None:
            return cls(ErrorKind.ENDED_BY, who=who, why="nothing that can be read")
        return said._quote(who)

    def _quote(self, who: str) -> VoteError:
        return VoteError(ErrorKind.ENDED_BY, who=who, why=f"{self.name}: {self.message}")


# What carries a status: errors of grpc.aio are no grpc.Call.
_Answered = (grpc.Call, grpc.aio.AioRpcError)


def _status_of(error: grpc.RpcError) -> errors_pb2.Status | None:
    if not isinstance(error, _Answered):
        return None
    for key, value in error.trailing_metadata() or ():
        if key == _STATUS_KEY:
            raw = value if isinstance(value, bytes) else value.encode()
            with contextlib.suppress(DecodeError):
                return errors_pb2.Status.FromString(raw)
    return None


def _rebuild(cls: type[VoteError], sent: grpc.RpcError) -> VoteError | None:
    status = _status_of(sent)
    return None if status is None else _restored(cls, status)


def _restored(cls: type[VoteError], status: errors_pb2.Status) -> VoteError | None:
    """An error with the peer's own sentence; one this version doesn't know stays readable."""
    info = _detail(status, errors_pb2.ErrorInfo)
    if info is None or info.domain != _DOMAIN:
        return None
    bad = _detail(status, errors_pb2.BadRequest)
    retry = _detail(status, errors_pb2.RetryInfo)
    error = cls.__new__(cls)
    error.message = _cut(status.message, 2 * MAX_VALUE_CHARACTERS)
    Exception.__init__(error, error.message)
    known = info.reason in ErrorKind.__members__
    error.kind = ErrorKind[info.reason] if known else ErrorKind.INTERNAL
    error.field = _cut(bad.field_violations[0].field) if bad and bad.field_violations else ""
    wait = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9 if retry else None
    error.retry_after = None if wait is None else min(max(wait, 0.0), _MAX_RETRY_SECONDS)
    some = islice(info.metadata.items(), _MAX_VALUES)
    error.values = {_cut(key): _cut(value) for key, value in some}
    return error


def printable(text: str) -> str:
    """A text that others wrote, fit for a line of a log or a terminal: what would end the line,
    steer the terminal or turn its direction is written as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _cut(text: str, limit: int = MAX_VALUE_CHARACTERS) -> str:
    """A text, or as much of it as an error has room for, on one line."""
    text = printable(text[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _attach(status: errors_pb2.Status, detail: Message) -> None:
    """Adds a detail under the name that it has in `google.rpc`."""
    name = _TYPE_URL + detail.DESCRIPTOR.name
    status.details.add(type_url=name, value=detail.SerializeToString())


def _detail(status: errors_pb2.Status, kind: type[M]) -> M | None:
    """The first detail of this kind, or None; one that can't be read is none."""
    for detail in status.details:
        if detail.type_url.endswith(f"/google.rpc.{kind.DESCRIPTOR.name}"):
            with contextlib.suppress(DecodeError):
                return kind.FromString(detail.value)
    return None


_WRONG = "the TLS handshake failed: wrong, unknown or expired certificate"
# What gRPC says of a connection that was not made, by a part of it; the first that is found counts.
_CAUSES = (
    ("refused", "connection refused"),
    # This end closed it, when its time to connect was up.
    ("endpoint closing", "it takes the connection and then says nothing: busy or stopped?"),
    ("wrong_version_number", "what answers there does not speak TLS"),
    ("certificate", _WRONG),
    ("verification", _WRONG),
    ("handshake read failed", "it hung up during the TLS handshake"),
    ("handshake", _WRONG),
    ("ssl", _WRONG),
)


def _short(code: grpc.StatusCode, text: str) -> str:
    lowered = text.lower()
    status = code.name.lower().replace("_", " ")
    return next((cause for mark, cause in _CAUSES if mark in lowered), status)
