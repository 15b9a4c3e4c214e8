"""Everything that reads bytes of others without a service around it: specs, plans of preprocessing,
tensors, packed numbers, errors, certificates, settings, data files, records."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import io
import math
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import grpc
import grpc.aio
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from agent_node import enrolment as joining
from agent_node.settings import AgentSettings
from aggregator.coordinator import enrolment
from aggregator.coordinator.settings import CoordinatorSettings
from aggregator.dealer.settings import DealerSettings
from aggregator.party.settings import PartySettings
from mpc_vote.app import config
from mpc_vote.app.process import CommandError
from mpc_vote.argmax.registry import ENGINES
from mpc_vote.cli.common import read_array
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import load_part, save_part
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.learning.nets.networks import Architecture
from mpc_vote.mpc import ring
from mpc_vote.mpc.sharing import Share, ShareReader
from mpc_vote.pki import identity, pem
from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import CredentialPaths, Credentials, Identity, Role, peer_identity
from mpc_vote.pki.pem import IdentityError
from mpc_vote.privacy import accountant
from mpc_vote.privacy.coins import fraction_bits_for
from mpc_vote.privacy.ledger import Budget, Ledger, LedgerError, LedgerView
from mpc_vote.privacy.mechanisms import Level, mechanism_from_json
from mpc_vote.proto.mpcvote.v1 import common_pb2, dealer_pb2
from mpc_vote.tasks import Task, TaskError
from mpc_vote.transport import tensors
from mpc_vote.verified.encoding import BitReader, Layout
from mpc_vote.voting import codec
from mpc_vote.voting.spec import Spec
from tests.connections import caller_named, tlv
from tests.security.fuzz.mutate import Call, Script, of_bytes, of_scripts
from tests.security.fuzz.runner import Finding, Run, Target

NOW = 1_900_000_000.0
"""When everything happens: deadlines in kept inputs stay where they are."""

PARTIES = ("party-0", "party-1")
AGENTS = ("ann", "ben", "cat")
ROUND = "round-1"


@contextlib.contextmanager
def at_a_fixed_time() -> Iterator[None]:
    """Specs find their deadlines ahead, whenever they are read."""
    clock = SimpleNamespace(time=lambda: NOW, monotonic=time.monotonic)
    with (
        mock.patch("mpc_vote.voting.spec.time", clock),
        mock.patch("aggregator.coordinator.planner.time", clock),
    ):
        yield


TASK = Task.parse(
    """
    format = 1
    name = "points"
    classes = ["a", "b", "c"]
    [input]
    kind = "vector"
    shape = [2]
    [features]
    map = "raw"
    [vote]
    ballot = "knn_count"
    k = 5
    """
)


def spec_message(**changes: Any) -> common_pb2.RoundSpec:
    """A small round that every role accepts."""
    given: dict[str, Any] = {
        "round_id": ROUND,
        "queries_digest": bytes(32),
        "queries": 5,
        "query_dtype": common_pb2.DTYPE_FLOAT32,
        "query_shape": [2],
        "classes": 3,
        "ballot": common_pb2.BALLOT_KIND_ONE_HOT,
        "fraction_bits": 4,
        "sigma": 1.0,
        "roster": [common_pb2.RosterEntry(agent=agent) for agent in AGENTS],
        "quorum": 2,
        "parties": PARTIES,
        "dealer": "dealer",
        "engine": common_pb2.ENGINE_TABLE,
        "deadline_unix_ms": int(1000 * (NOW + 60)),
    }
    if changes.get("verified"):
        given["fraction_bits"] = fraction_bits_for(given["sigma"])
    message = common_pb2.RoundSpec(**{**given, **changes})
    if not message.ring_bits:
        bits = ring.bits_for(Spec(b"", message).total_bound)
        message.ring_bits = 64 if message.engine != common_pb2.ENGINE_TABLE else bits
    return message


def specs() -> list[common_pb2.RoundSpec]:
    """Valid rounds of each kind."""
    counted = [common_pb2.RosterEntry(agent=agent, k=5) for agent in AGENTS]
    count, many = common_pb2.BALLOT_KIND_KNN_COUNT, common_pb2.BALLOT_KIND_MULTI_LABEL
    return [
        spec_message(),
        spec_message(verified=True),
        spec_message(ballot=count, roster=counted),
        spec_message(ballot=count, roster=counted, verified=True),
        spec_message(ballot=common_pb2.BALLOT_KIND_KNN_FREQUENCY, roster=counted, fraction_bits=7),
        spec_message(ballot=many, classes=4, tau=2),
        spec_message(ballot=many, classes=4, tau=2, verified=True),
        spec_message(engine=common_pb2.ENGINE_CRYPTEN_PAIRWISE),
        spec_message(engine=common_pb2.ENGINE_CRYPTEN_LOG_REDUCTION, collusion=1),
        spec_message(classes=9, groups=[3, 3]),
        spec_message(task="sepsis", task_digest=bytes(32)),
    ]


def one(*messages: Any, method: int = 0) -> bytes:
    """A script of one call."""
    return Script(calls=(Call(method, 0, tuple(m.SerializeToString() for m in messages)),)).encode()


def only_message(data: bytes) -> bytes:
    """The first message of a script."""
    calls = Script.decode(data).calls
    return calls[0].messages[0] if calls and calls[0].messages else b""


def decoder(
    name: str,
    read: Callable[[bytes], object],
    seeds: Callable[[], list[bytes]],
    mutate: Any,
    *refusals: type[Exception],
) -> Target:
    """A target without state: it reads, or raises one of the refusals or `VoteError`."""

    def run(data: bytes) -> str:
        try:
            read(data)
        except VoteError as error:
            return refused(error)
        except refusals as error:
            return told(error)
        return "accepted"

    @contextlib.contextmanager
    def opened(_: Path) -> Iterator[Run]:
        with at_a_fixed_time():
            yield run

    return Target(name, opened, seeds, mutate)


def refused(error: VoteError) -> str:
    """The catalogue's word for a refusal, which must not blame this side, nor go on for ever."""
    if error.kind is ErrorKind.INTERNAL:
        raise Finding(f"INTERNAL: {error.message[:200]}") from error
    size = sum(len(value) for _, value in error.trailing_metadata())
    if size > 64 << 10:
        raise Finding(f"a refusal {error.name} of {size:,} bytes")
    return told(error, error.name)


def told(error: BaseException, name: str = "") -> str:
    """A refusal by its name and the lines that it comes from: each is another path."""
    frames = traceback.extract_tb(error.__traceback__)[-2:]
    places = " ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return f"{name or type(error).__name__} {places}"


# Messages


def _spec(data: bytes) -> None:
    spec = Spec.parse(only_message(data))
    for agent in list(spec.roster)[:3]:
        spec.share_bytes(agent)
        spec.explicit_rank(agent)
    for level in Level:
        if math.isnan(accountant.epsilon([spec.mechanism], level, 1e-5)):
            raise Finding("no epsilon")
    if spec.message.engine == common_pb2.ENGINE_TABLE or spec.message.classes <= 16:
        spec.plan()


def _plan(data: bytes) -> None:
    request = dealer_pb2.DealRequest.FromString(only_message(data))
    plan = codec.from_wire(request.plan)
    for item, _ in zip(plan, range(100), strict=False):
        # What it would take at a dealer of two parties.
        if item.part_bytes > 512 << 20:
            raise Finding(f"{item} takes {item.part_bytes:,} bytes")


def plan_requests() -> list[dealer_pb2.DealRequest]:
    """What parties ask the dealer for, in rounds of each kind."""
    return [
        dealer_pb2.DealRequest(
            session_id=ROUND,
            parties=PARTIES,
            plan=codec.to_wire(Spec(b"", message).plan()),
            copies=2,
            seeds=[bytes(32)] * 2,
        )
        for message in specs()
    ]


def _tensor(data: bytes) -> None:
    array = tensors.from_tensor(common_pb2.Tensor.FromString(only_message(data)))
    tensors.check_finite(array, "queries")
    tensors.digest_of(array)
    tensors.to_tensor(array)


def example_tensors() -> list[common_pb2.Tensor]:
    """Arrays of every type."""
    shapes: list[tuple[int, ...]] = [(3, 2), (1, 2, 2), (0, 4), (5, 1)]
    kinds = ("f4", "f8", "u1", "i4", "i8")
    return [tensors.to_tensor(np.ones(shape, kind)) for kind in kinds for shape in shapes]


def _parsed(read: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """gRPC itself refuses what is no message."""

    def run(data: bytes) -> None:
        with contextlib.suppress(DecodeError):
            read(data)

    return run


def _packed(data: bytes) -> None:
    """The first bytes say how many numbers of how many bits the rest should be."""
    bits, count = (data[0] if data else 0) % 70, int.from_bytes(data[1:3], "little")
    if ring.unpack(data[3:], bits, count).size != count:
        raise Finding("another number of values")


def _planes(data: bytes) -> None:
    bits, count = (data[0] if data else 0) % 70, int.from_bytes(data[1:3], "little")
    if ring.unpack_planes(data[3:], bits, count).size != count:
        raise Finding("another number of values")


def _packings() -> list[bytes]:
    values = np.arange(20, dtype=np.uint64)
    return [
        bytes([bits, 20, 0]) + pack(values, bits)
        for pack in (ring.pack, ring.pack_planes)
        for bits in (1, 7, 8, 13, 16, 25, 31, 33, 57, 64)
    ]


def _share(data: bytes) -> None:
    """A share of the size that intake insists on, read block by block."""
    bits, count = 1 + (data[0] if data else 0) % 64, (data[1] if len(data) > 1 else 0) * 16
    packed = data[2:].ljust(ring.packed_size(count, bits), b"\xff")
    reader = ShareReader(Share(packed=packed[: ring.packed_size(count, bits)]), bits)
    for _ in range(2):
        if reader.take(count // 2).size != count // 2:
            raise Finding("another number of values")


def _bits(data: bytes) -> None:
    head = data[:4].ljust(4, b"\1")
    layout = Layout(2 + head[0] % 30, 16, 1 + head[1] % 9, bool(head[2] & 1))
    queries = 8 * (1 + head[3] % 4)
    size = layout.share_bytes(queries)
    reader = BitReader(Share(packed=data[4:].ljust(size, b"\xff")[:size]), layout)
    shape = reader.take(queries).shape
    if shape != (queries, layout.bits):
        raise Finding(f"bits of shape {shape}")


def _error(data: bytes) -> None:
    """What a hostile peer puts into the details of an error."""
    metadata = grpc.aio.Metadata(("grpc-status-details-bin", only_message(data)))
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.ABORTED, grpc.aio.Metadata(), metadata, details="no"
    )
    rebuilt = VoteError.from_rpc(error, "The peer")
    if not isinstance(rebuilt, VoteError) or not isinstance(rebuilt.message, str):
        raise Finding("no error of the catalogue")
    str(rebuilt)
    # It is passed on to whoever asked this side.
    if sum(len(value) for _, value in rebuilt.trailing_metadata()) > 4 * len(data) + (64 << 10):
        raise Finding("it grows when it is passed on")


def _errors() -> list[bytes]:
    made = [
        VoteError(ErrorKind.SERVICE_BUSY, got=8, retry_after=2.0),
        VoteError(ErrorKind.SIGMA_RANGE, field="plan.sigma", got=-1.0),
        VoteError(ErrorKind.AGENTS_ABSENT, retry_after=5.0),
    ]
    odd = status_pb2.Status(code=3, message="x")
    odd.details.add().Pack(error_details_pb2.ErrorInfo(reason="NEWER", domain="mpc-vote"))
    details: list[Any] = [
        error_details_pb2.RetryInfo(),
        error_details_pb2.BadRequest(
            field_violations=[error_details_pb2.BadRequest.FieldViolation(field="f")]
        ),
    ]
    details[0].retry_delay.seconds = 5
    packed = [one(error.to_status()) for error in made] + [one(odd)]
    for detail in details:
        odd.details.add().Pack(detail)
        packed.append(one(odd))
    return packed


def _mutate_errors(data: bytes, other: bytes, rng: Any) -> bytes:
    """Details travel as bytes inside: they are changed as the messages that they are."""
    status = status_pb2.Status()
    with contextlib.suppress(DecodeError):
        status = status_pb2.Status.FromString(only_message(data))
    if not status.details or rng.random() < 0.3:
        return of_scripts(status_pb2.Status)(data, other, rng)
    detail = rng.choice(status.details)
    for kind in (
        error_details_pb2.ErrorInfo,
        error_details_pb2.RetryInfo,
        error_details_pb2.BadRequest,
        error_details_pb2.QuotaFailure,
    ):
        if detail.Is(kind.DESCRIPTOR):
            inner = Script(calls=(Call(0, 0, (detail.value,)),)).encode()
            detail.value = only_message(of_scripts(kind)(inner, inner, rng))
    return one(status)


# Who is who


def _peer(data: bytes) -> None:
    """Names in a certificate, one to a line; the first ones are of the DNS kind."""
    names = data.split(b"\n")
    found = peer_identity(caller_named(*names[:2], uris=names[2:]))
    if found is not None and found.dns_name.encode() not in names[:2]:
        raise Finding(f"{found} is not among the names")


def _certificate() -> tuple[Callable[[bytes], None], Callable[[], list[bytes]]]:
    """Certificates whose content is anything, signed by the authority all the same."""
    # The same keys in every run, or what is kept would be for keys that are gone.
    keys = iter(ec.derive_private_key(n, ec.SECP256R1()) for n in (1001, 1002))
    fixed = mock.patch.object(ec, "generate_private_key", lambda _: next(keys))
    with tempfile.TemporaryDirectory() as scratch, fixed:
        folder = Path(scratch)
        root = CertificateAuthority.create(folder / "ca")
        root.issue(Identity(Role.AGENT, "ann"), folder / "ann", hosts=["localhost"])
        signer = pem.parse_key((folder / "ca" / "ca-key.pem").read_bytes(), folder)
        made = {
            name: (folder / "ann" / f"{name}.pem").read_bytes() for name in ("ca", "cert", "key")
        }
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    paths = CredentialPaths.in_directory(Path("certs"))
    ending = bytes.fromhex("300a06082a8648ce3d040302")

    def read(data: bytes) -> None:
        signature = signer.sign(data, ec.ECDSA(hashes.SHA256()))
        der = tlv(0x30, data + ending + tlv(0x03, b"\0" + signature))
        certificate = b"-----BEGIN CERTIFICATE-----\n%s\n-----END CERTIFICATE-----\n"
        Credentials.check(
            made["ca"], certificate % base64.b64encode(der), made["key"], paths, Role.AGENT
        )

    def seeds() -> list[bytes]:
        leaf = x509.load_pem_x509_certificate(made["cert"])
        return [leaf.tbs_certificate_bytes]

    return read, seeds


def _pem(data: bytes) -> None:
    path = Path("file.pem")
    try:
        for certificate in pem.parse_certificates(data, path):
            identity._alternative_names(certificate)
            pem.check_dates(certificate, path)
    except IdentityError:
        pem.parse_key(data, path)


def _pems() -> list[bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    start = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(start)
        .not_valid_after(start + dt.timedelta(days=9))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("a.agent.mpc-vote")]), False)
        .sign(key, hashes.SHA256())
    )
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"word"),
    )
    return [pem.encode_key(key), pem.encode_certificate(certificate), locked]


def csrs() -> list[bytes]:
    """Requests for a certificate, in DER."""
    return [joining._request(ec.generate_private_key(curve())) for curve in (ec.SECP256R1,)]


def _wrong_csrs() -> list[bytes]:
    other = ec.generate_private_key(ec.SECP384R1())
    return [*csrs(), joining._request(other)]


def _token(data: bytes) -> None:
    joining._text(data, Path("token"))


# Settings


_SETTINGS = (AgentSettings, CoordinatorSettings, PartySettings, DealerSettings)


def _settings(data: bytes) -> None:
    """The first byte chooses the command, the rest is its file."""
    read, write = os.pipe()
    os.write(write, data[1:60_000])
    os.close(write)
    try:
        model = _SETTINGS[(data[0] if data else 0) % len(_SETTINGS)]
        config.load(model, [f"--config=/dev/fd/{read}"])
    finally:
        os.close(read)


_AGENT = b"""certs = "certs"
data = "demo"
data-dir = "data"
coordinator = "localhost:7000"
features = "raw"
neighbours = 5
budget-instance = 2.5
method = "knn"
[parties]
party-0 = "localhost:7001"
party-1 = "unix:/run/p1"
"""
_COORDINATOR = b"""certs = "certs"
listen = "0.0.0.0:7000"
data_dir = "data"
sigma = 25.0
engine = "table"
revoked_agents = ["eve"]
parties = { party-0 = "localhost:7001", party-1 = "localhost:7002" }
"""
_PARTY = b"""certs = "certs"
listen = "0.0.0.0:7000"
data_dir = "data"
dealer = "d:1"
pool_mib = 64
parties = { party-0 = "localhost:7001", party-1 = "localhost:7002" }
"""
_WORDS = (
    *(b'"', b"'''", b"[", b"]", b"[[", b"{", b"}", b"=", b"\n", b"#", b".", b",", b"\\u0000"),
    *(b"\\ud800", b"inf", b"nan", b"-1", b"1e999", b"0x", b"true", b"9" * 5000, b"[" * 2000),
    *(b"1979-05-27", b"certs", b"parties", b"listen", b"cli_args = 1\n", b"_env_file = 'x'\n"),
    *(name.encode() for name in ENGINES.names()),
)


# Data files


def _file(read: Callable[[Path], object], name: str) -> Callable[[Path], Any]:
    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Run]:
        path = folder / name

        def run(data: bytes) -> str:
            path.write_bytes(data)
            try:
                read(path)
            except (ValueError, CommandError, LedgerError, FileNotFoundError) as error:
                if str(path) not in str(error):
                    raise
                return told(error)
            return "accepted"

        yield run

    return opened


def _parts() -> list[bytes]:
    made = []
    for y in (np.array([0, 1, 1]), np.array([[0, 1], [1, 1], [0, 0]])):
        part = Dataset("part", np.ones((3, 2), np.float32), y.astype(np.int64), 2)
        with tempfile.NamedTemporaryFile() as file:
            save_part(file.name, part)
            made.append(Path(file.name).read_bytes())
        plain = io.BytesIO()
        np.savez(plain, name=np.array("p"), x=part.x, y=part.y, classes=np.array(2))
        made.append(plain.getvalue())
    return made


def _arrays() -> list[bytes]:
    made = []
    for array in (np.ones((3, 2), np.float32), np.arange(4), np.array(["a"]), np.zeros(0)):
        file = io.BytesIO()
        np.save(file, array)
        made.append(file.getvalue())
    return made


def _ledgers() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        with Ledger(path, Budget(900.0, None, 1e-5)) as ledger:
            ledger.charge(ROUND, Spec(b"", spec_message()).mechanism, "note")
        return [path.read_bytes()]


def _ledger(path: Path) -> None:
    with LedgerView(path) as ledger:
        ledger.spent(Level.AGENT, 1e-5)
        ledger.spends()


def _mechanism(data: bytes) -> None:
    mechanism_from_json(data.decode())


def _mechanisms() -> list[bytes]:
    return [Spec(b"", message).mechanism.to_json().encode() for message in specs()]


def _architecture(data: bytes) -> None:
    Architecture.from_json(data.decode())


_JSON = (b"{", b"}", b"[", b"]", b":", b",", b"null", b"true", b"1e999", b"-1", b"NaN", b"Infinity")
_HEADERS = (
    *(b"(", b")", b",", b"'descr'", b"'<f4'", b"'|O'", b"'shape'", b"True", b"False"),
    *(b"1000000000000", b"99999999", b"-1", b"\x93NUMPY", b"PK\x01\x02", b"PK\x05\x06"),
)

_read_certificate, _certificates = _certificate()

DECODERS = [
    decoder("spec", _spec, lambda: [one(m) for m in specs()], of_scripts(common_pb2.RoundSpec)),
    decoder(
        "plan",
        _parsed(_plan),
        lambda: [one(request) for request in plan_requests()],
        of_scripts(dealer_pb2.DealRequest),
    ),
    decoder(
        "tensor",
        _parsed(_tensor),
        lambda: [one(tensor) for tensor in example_tensors()],
        of_scripts(common_pb2.Tensor),
    ),
    decoder("packed", _packed, _packings, of_bytes(), ValueError),
    decoder("planes", _planes, _packings, of_bytes(), ValueError),
    decoder("share", _share, _packings, of_bytes()),
    decoder("bits", _bits, _packings, of_bytes()),
    decoder("error", _error, _errors, _mutate_errors),
    decoder(
        "peer",
        _peer,
        lambda: [b"ann.agent.mpc-vote\nlocalhost", b"x.party.mpc-vote"],
        of_bytes((b"mpc-vote", b".agent.", b".party.", b"\n", b".", b"MPC-VOTE", b"\0")),
    ),
    decoder("certificate", _read_certificate, _certificates, of_bytes(), IdentityError),
    decoder("pem", _pem, _pems, of_bytes((b"-----BEGIN ", b"-----\n", b"=")), IdentityError),
    decoder("csr", enrolment._proven_key, _wrong_csrs, of_bytes()),
    decoder("token-file", _token, lambda: [b"abc-DEF_123\n"], of_bytes(), CommandError),
    decoder(
        "settings",
        _settings,
        lambda: [b"\0" + _AGENT, b"\1" + _COORDINATOR, b"\2" + _PARTY, b"\3" + _PARTY],
        of_bytes(_WORDS),
        config.ConfigError,
    ),
    decoder("task", Task.from_wire, lambda: [TASK.wire], of_bytes(_JSON), TaskError),
    decoder("mechanism", _mechanism, _mechanisms, of_bytes(_JSON), ValueError),
    decoder(
        "architecture",
        _architecture,
        lambda: [Architecture.for_shape(s, 3).to_json().encode() for s in ((4,), (1, 9, 9))],
        of_bytes(_JSON),
        ValueError,
    ),
    Target("part-file", _file(load_part, "part.npz"), _parts, of_bytes(_HEADERS)),
    Target("array-file", _file(read_array, "array.npy"), _arrays, of_bytes(_HEADERS)),
    Target("ledger-file", _file(_ledger, "ledger.db"), _ledgers, of_bytes()),
]
