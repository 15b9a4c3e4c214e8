"""How an agent gets its certificate by itself: a key of its own, a token, and the coordinator; and
before that certificate ends, another one for another key.

Keys are made here and never leave. The token goes to nobody but the server that proves to be the
coordinator to the authority that this agent was given. An answer is accepted only if that same
authority has certified it: it can't change whom the agent trusts.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import os
import random
import secrets
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agent_node.settings import AgentSettings
from mpc_vote.app.process import CommandError
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.pki import pem
from mpc_vote.pki.identity import CredentialPaths, Credentials, Identity, Role
from mpc_vote.pki.pem import IdentityError
from mpc_vote.proto.mpcvote.v1 import enrolment_pb2, enrolment_pb2_grpc
from mpc_vote.transport import rpc

log = logging.getLogger(__name__)

_CALL_SECONDS = 10.0
_BACKOFF_SECONDS = (0.2, 5.0)
_RENEWAL_SECONDS = 3600.0
_RETRY_SECONDS = 60.0
_CLAIMED = "claimed"
_MAX_TOKEN_BYTES = 1024
# The coordinator is not up yet, or has no time: asking again may help.
_PASSING = (ErrorKind.COORDINATOR_UNREACHABLE, ErrorKind.ANSWER_LATE, ErrorKind.ENROLMENT_BUSY)


async def credentials_of(settings: AgentSettings) -> Credentials:
    """The agent's credentials; without any, and with an address to enrol at, new ones."""
    paths = CredentialPaths.in_directory(settings.certs)
    if settings.enrol is not None and not paths.certificate.exists():
        await _enrol(settings, settings.enrol, paths)
    return Credentials.load(settings.certs, Role.AGENT)


async def keep_renewed(
    credentials: Credentials, certs: Path, coordinator: rpc.AuthenticatedChannel
) -> None:
    """Renews the agent's certificate whenever its end is near, for ever."""
    while True:
        left = credentials.newest().renew_from - dt.datetime.now(dt.UTC)
        if left <= dt.timedelta():
            try:
                await _renew(credentials.newest(), certs, coordinator)
            except (VoteError, IdentityError) as error:
                log.warning("the certificate is not renewed yet: %s", error)
        await asyncio.sleep(min(_RENEWAL_SECONDS, max(left.total_seconds(), _RETRY_SECONDS)))


async def _renew(
    credentials: Credentials, certs: Path, coordinator: rpc.AuthenticatedChannel
) -> None:
    paths = CredentialPaths.in_directory(certs)
    key = ec.generate_private_key(ec.SECP256R1())
    stub = enrolment_pb2_grpc.RenewalServiceStub(coordinator)
    request = enrolment_pb2.RenewRequest(csr_der=_request(key))
    try:
        response = rpc.readable(await stub.Renew(request, timeout=_CALL_SECONDS), "Renew")
    except grpc.RpcError as error:
        who = f"The coordinator at {coordinator.address}"
        raise VoteError.from_rpc(error, who, ErrorKind.COORDINATOR_UNREACHABLE) from error
    chain, key_pem = response.certificate_pem, pem.encode_key(key)
    renewed = Credentials.check(credentials.ca_pem, chain, key_pem, paths, Role.AGENT)
    if renewed.identity != credentials.identity:
        raise IdentityError(f"The coordinator answered with a certificate of {renewed.identity}.")
    # What is in use is given up for it.
    if renewed.not_after < credentials.not_after or renewed.is_revoked:
        raise IdentityError(
            "The coordinator answered with a certificate that is revoked or ends before this one."
        )
    paths.put(credentials.ca_pem, chain, key_pem, overwrite=True)
    log.info("the certificate is renewed until %s UTC", f"{renewed.not_after:%Y-%m-%d %H:%M}")


async def _enrol(settings: AgentSettings, address: str, paths: CredentialPaths) -> None:
    ca_pem = pem.read(settings.ca or paths.ca)
    pem.parse_certificates(ca_pem, settings.ca or paths.ca)
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    claimed = settings.data_dir / "enrolment-token"
    key = _own_key(paths.key)
    coordinator = Identity(Role.COORDINATOR, settings.coordinator_name)
    try:
        async with asyncio.timeout(settings.enrol_seconds):
            token = await _token(settings, claimed)
            async with rpc.dial_anonymously(ca_pem, address, coordinator) as channel:
                response = await _ask(channel, address, token, _request(key))
    except VoteError as error:
        if error.kind is ErrorKind.TOKEN_REFUSED:
            # The next start claims another, if there is a pool.
            claimed.unlink(missing_ok=True)
        raise
    except TimeoutError as error:
        raise CommandError(
            f"could not enrol within {settings.enrol_seconds:g} s; the log above says why. Check "
            f"that the coordinator runs with --enrol-listen and answers on {address}"
        ) from error
    try:
        credentials = Credentials.check(
            ca_pem, response.certificate_pem, pem.encode_key(key), paths, Role.AGENT
        )
    except IdentityError as error:
        raise CommandError(f"the coordinator's answer can't be used: {error}") from error
    files = {paths.certificate: (response.certificate_pem, pem.PUBLIC)}
    if not paths.ca.exists() or paths.ca.read_bytes() != ca_pem:
        files = {paths.ca: (ca_pem, pem.PUBLIC), **files}
    # The certificate last: while it is missing, the agent has not enrolled.
    pem.write_all(settings.certs, files, overwrite=True)
    claimed.unlink(missing_ok=True)
    log.info("enrolled as %s", credentials.identity)


def _own_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The agent's key; one that an interrupted enrolment left is used, never replaced."""
    if path.exists():
        key = pem.parse_key(pem.read_key_file(path), path)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
            raise IdentityError(f"The key {path} is not ECDSA P-256. Move it away to enrol.")
        return key
    key = ec.generate_private_key(ec.SECP256R1())
    pem.write_all(path.parent, {path: (pem.encode_key(key), pem.SECRET)}, overwrite=False)
    return key


def _request(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A certificate request without names: the token has the name."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return request.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


async def _ask(
    channel: grpc.aio.Channel, address: str, token: str, csr_der: bytes
) -> enrolment_pb2.EnrolResponse:
    """Asks until there is an answer; the caller sets the limit."""
    stub = enrolment_pb2_grpc.EnrolmentServiceStub(channel)
    request = enrolment_pb2.EnrolRequest(token=token, csr_der=csr_der)
    wait, most = _BACKOFF_SECONDS
    while True:
        try:
            response: enrolment_pb2.EnrolResponse = await stub.Enrol(request, timeout=_CALL_SECONDS)
            return rpc.readable(response, "Enrol")
        except grpc.RpcError as error:
            who = f"The coordinator at {address}"
            failure = VoteError.from_rpc(error, who, ErrorKind.COORDINATOR_UNREACHABLE)
            if failure.kind not in _PASSING:
                raise failure from error
            log.warning("not enrolled yet: %s", failure.message)
        await asyncio.sleep(wait * random.uniform(0.5, 1.0))
        wait = min(most, 2 * wait)


async def _token(settings: AgentSettings, claimed: Path) -> str:
    """The token from its file, or one that this agent takes from the pool and keeps as `claimed`
    until it is used, so that a restart takes no second one."""
    if settings.token_file is not None:
        return _text(pem.read(settings.token_file), settings.token_file)
    if settings.token_pool is None:
        raise CommandError("to enrol, a token is needed: pass --token-file or --token-pool")
    wait, most = _BACKOFF_SECONDS
    while not claimed.exists() and not claim(settings.token_pool, claimed):
        log.warning("not enrolled yet: no token is left in %s", settings.token_pool)
        await asyncio.sleep(wait * random.uniform(0.5, 1.0))
        wait = min(most, 2 * wait)
    return _text(claimed.read_bytes(), claimed)


def _order(path: Path) -> tuple[int, str]:
    """Names that end in a number come in the order of the number: agent-2 before agent-10."""
    return len(path.name), path.name


def claim(pool: Path, into: Path) -> bool:
    """Moves a token out of a pool into a file of one's own; False if there is none.

    Of all that try to rename a file, one succeeds. So it is renamed first, within the pool, since
    a rename does not reach another file system, to a name that nobody else has.
    """
    try:
        aside = pool / _CLAIMED
        aside.mkdir(exist_ok=True, mode=0o700)
        for path in sorted((path for path in pool.iterdir() if path.is_file()), key=_order):
            if path.name.startswith("."):
                continue
            mine = aside / f"{path.name}.{secrets.token_hex(8)}"
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                os.rename(path, mine)
                pem.write(into, file.read(_MAX_TOKEN_BYTES), pem.SECRET)
                mine.unlink()
                return True
    except OSError as error:
        raise CommandError(
            f"can't take a token from the pool {pool}: {error.strerror}; it must be a folder that "
            "this user can write to, with tokens that it can read"
        ) from error
    return False


def _text(content: bytes, path: Path) -> str:
    token = content.decode("ascii", "replace").strip()
    if not token or len(content) > _MAX_TOKEN_BYTES:
        raise CommandError(f"{path} holds no token; make one with mpc-vote token")
    return token
