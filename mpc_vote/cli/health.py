"""`mpc-vote health`: asks a process, over mutual TLS, whether it can do its work.

Containers run it every few seconds, so it imports gRPC and little else: certificates are left for
TLS to verify.

A process that asks about itself trusts its own certificate and nothing else. So it also works for
an agent that enrolled, whose authority vouches for it as a client only.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import datetime as dt
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc

from mpc_vote.transport import health

_DOMAIN = "mpc-vote"
_DNS_NAME = re.compile(rb"\x82(.)([a-z0-9-]+\.[a-z]+\.mpc-vote)", re.DOTALL)
# Two times of X.509, each of twelve digits: the certificate's first and last instant.
_VALIDITY = re.compile(rb"\x17\x0d(\d{12})Z\x17\x0d(\d{12})Z")
_SERVER = re.compile(r"[a-z]+/[a-z0-9-]+")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote health`: 0 if the process serves, 1 if it doesn't, 2 for a mistaken call."""
    given = _parser().parse_args(arguments)
    try:
        state = _check(given.certs, given.address, given.server, given.service, given.seconds)
    except OSError as error:
        return _fail(f"can't read {error.filename}: {error.strerror}")
    except ValueError as error:
        return _fail(str(error))
    except grpc.RpcError as error:
        return _fail(f"{given.address} does not answer: {_why(error)}")
    if state != health.SERVING:
        return _fail(f"{given.address} answers {health.STATES.get(state, state)}")
    print("SERVING")
    if (end := _near_end((given.certs / "cert.pem").read_bytes())) is not None:
        print(
            f"mpc-vote health: warning: the certificate in {given.certs} ends on "
            f"{end:%Y-%m-%d %H:%M} UTC: renew it",
            file=sys.stderr,
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mpc-vote health",
        description="Asks a process whether it can do its work. Exit code 0: it can; 1: it can't.",
    )
    parser.add_argument(
        "--certs", type=Path, required=True, help="folder with ca.pem, cert.pem and key.pem"
    )
    parser.add_argument("--address", required=True, help="host:port or unix:/path of the process")
    parser.add_argument(
        "--server", help="role/name of the process; the one whose --certs these are if left out"
    )
    parser.add_argument("--service", default="", help="one of its services; all if left out")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to wait (default 3)")
    return parser


def _check(certs: Path, address: str, server: str | None, service: str, seconds: float) -> int:
    certificate, key = (certs / "cert.pem").read_bytes(), (certs / "key.pem").read_bytes()
    own = _own_name(certificate)
    meant = own if server is None else _dns_name(server)
    if not meant:
        raise ValueError(f"{certs / 'cert.pem'} names nobody; pass --server role/name")
    roots = certificate if meant == own else (certs / "ca.pem").read_bytes()
    credentials = grpc.ssl_channel_credentials(roots, key, certificate)
    options = [("grpc.ssl_target_name_override", meant), ("grpc.enable_retries", 0)]
    with grpc.secure_channel(address, credentials, options) as channel:
        ask: grpc.UnaryUnaryMultiCallable[str, int]
        ask = channel.unary_unary(health.CHECK, health.request, health.status)
        return ask(service, timeout=seconds)


def _own_name(certificate_pem: bytes) -> str | None:
    """The name in a certificate of one's own, found without parsing it: TLS checks it anyway."""
    der = _der(certificate_pem)
    names = {name.decode() for length, name in _DNS_NAME.findall(der) if length[0] == len(name)}
    return names.pop() if len(names) == 1 else None


def _near_end(certificate_pem: bytes) -> dt.datetime | None:
    """When a certificate ends, if it is time to renew it (as `Credentials.renew_from` has it)."""
    found = _VALIDITY.search(_der(certificate_pem))
    if found is None:
        return None
    start, end = (
        dt.datetime.strptime(f"{t.decode()}+0000", "%y%m%d%H%M%S%z") for t in found.groups()
    )
    near = end - min(dt.timedelta(days=30), (end - start) / 3)
    return end if dt.datetime.now(dt.UTC) >= near else None


def _der(certificate_pem: bytes) -> bytes:
    body = certificate_pem.partition(b"-----BEGIN CERTIFICATE-----")[2]
    try:
        return base64.b64decode(body.partition(b"-----END CERTIFICATE-----")[0])
    except binascii.Error:
        return b""


def _dns_name(server: str) -> str:
    if not _SERVER.fullmatch(server):
        raise ValueError(f"{server!r} is not role/name, e.g. party/party-0")
    role, name = server.split("/")
    return f"{name}.{role}.{_DOMAIN}"


def _why(error: grpc.RpcError) -> str:
    if not isinstance(error, grpc.Call):
        return str(error)
    details = (error.details() or "").rpartition("last error: ")[2]
    return f"{error.code().name.lower().replace('_', ' ')} ({details})"


def _fail(why: str) -> int:
    print(f"mpc-vote health: error: {why}", file=sys.stderr)
    return 1
