"""Where agents get their certificates: a token and a key of their own against a name, and later the
certificate that they have and another key.

Callers are unknown, so all is bounded: sizes, calls at a time, and what a refusal says. A token is
used up on disk before anything is signed, so a crash costs a token and no token is used twice.
docs/threat-model.md says what the holder of the agents' authority can do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from aggregator.coordinator.tokens import Tokens
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki import pem, revocation
from mpc_vote.pki.authority import AgentAuthority
from mpc_vote.pki.identity import Role
from mpc_vote.pki.pem import IdentityError
from mpc_vote.proto.mpcvote.v1 import enrolment_pb2, enrolment_pb2_grpc
from mpc_vote.transport import rpc

log = logging.getLogger(__name__)

_MAX_TOKEN_CHARACTERS = 128
_MAX_CSR_BYTES = 4096
_AT_ONCE = 4

Response = TypeVar("Response")


class _FewAtOnce:
    """Does work in threads; refuses more than a few at a time."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[Any]] = set()

    async def do(self, work: Callable[[], Response]) -> Response:
        if len(self._under_way) >= _AT_ONCE:
            raise VoteError(ErrorKind.ENROLMENT_BUSY, retry_after=1.0)
        # A caller that hangs up does not make room while its work goes on.
        task = asyncio.create_task(asyncio.to_thread(work))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)


class EnrolmentServicer(enrolment_pb2_grpc.EnrolmentServiceServicer):
    """Certifies agents that hold a token."""

    def __init__(self, tokens: Tokens, authority: AgentAuthority) -> None:
        self._tokens = tokens
        self._authority = authority
        self._work = _FewAtOnce()

    async def health(self) -> Mapping[str, bool]:
        """Whether agents can enrol: the authority must not have expired."""
        try:
            self._authority.check()
        except IdentityError:
            return {"mpcvote.v1.EnrolmentService": False}
        return {"mpcvote.v1.EnrolmentService": True}

    @rpc.anybody
    async def Enrol(
        self, request: enrolment_pb2.EnrolRequest, context: Any
    ) -> enrolment_pb2.EnrolResponse:
        return await self._work.do(lambda: self._enrol(request))

    def _enrol(self, request: enrolment_pb2.EnrolRequest) -> enrolment_pb2.EnrolResponse:
        # The request first: then a token is never tried without being used up.
        key = _proven_key(request.csr_der)
        self._authority.check()
        name = None
        if len(request.token) <= _MAX_TOKEN_CHARACTERS:
            name = self._tokens.redeem(request.token)
        if name is None:
            raise VoteError(ErrorKind.TOKEN_REFUSED)
        return enrolment_pb2.EnrolResponse(
            name=name,
            certificate_pem=_certified(self._authority, name, key, "enrolled"),
            authority_pem=pem.encode_certificate(self._authority.root),
        )


class RenewalServicer(enrolment_pb2_grpc.RenewalServiceServicer):
    """Certifies a new key of an agent that enrolled; without an authority, nobody's."""

    def __init__(self, authority: AgentAuthority | None, revoked: Collection[str]) -> None:
        self._authority = authority
        self._revoked = frozenset(revoked)
        self._work = _FewAtOnce()

    async def health(self) -> Mapping[str, bool]:
        """It answers, if only that it certifies nobody: agents have time to ask again."""
        return {"mpcvote.v1.RenewalService": True}

    @rpc.allowed(Role.AGENT)
    async def Renew(
        self, request: enrolment_pb2.RenewRequest, context: Any
    ) -> enrolment_pb2.RenewResponse:
        name, authority = rpc.caller().name, self._authority
        if name in self._revoked:
            raise VoteError(ErrorKind.AGENT_REVOKED, agent=name)
        peer = revocation.peer(context.auth_context())
        # What a root issued, it has to be able to revoke by its own record: no other certificate
        # comes of it here.
        if authority is None or peer is None or peer.issuer != authority.name:
            raise VoteError(ErrorKind.RENEWAL_ELSEWHERE)

        def renew() -> enrolment_pb2.RenewResponse:
            key = _proven_key(request.csr_der)
            authority.check()
            chain = _certified(authority, name, key, "renewed")
            return enrolment_pb2.RenewResponse(certificate_pem=chain)

        return await self._work.do(renew)


def _certified(
    authority: AgentAuthority, name: str, key: ec.EllipticCurvePublicKey, what: str
) -> bytes:
    """A certificate chain for an agent; the log has what is needed to revoke it."""
    chain = authority.certify(name, key)
    serial = x509.load_pem_x509_certificate(chain).serial_number
    log.info("agent %s %s: certificate with serial number %x", name, what, serial)
    return chain


def _proven_key(csr_der: bytes) -> ec.EllipticCurvePublicKey:
    """The key in a certificate request, whose holder signed the request. Its names are ignored."""
    if len(csr_der) > _MAX_CSR_BYTES:
        raise VoteError(ErrorKind.CSR_REFUSED, why=f"it takes over {_MAX_CSR_BYTES} bytes")
    try:
        csr = x509.load_der_x509_csr(csr_der)
        key, proven = csr.public_key(), csr.is_signature_valid
    except pem.UNREADABLE as error:
        raise VoteError(ErrorKind.CSR_REFUSED, why="it can't be read") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise VoteError(ErrorKind.CSR_REFUSED, why="its key is not ECDSA P-256")
    if not proven:
        raise VoteError(ErrorKind.CSR_REFUSED, why="its signature is not by its key")
    return key
