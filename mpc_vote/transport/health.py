"""The two messages of `grpc.health.v1` that asking takes, written out by hand.

So a client needs no further package for them, and `mpc-vote health`, which containers run every few
seconds, imports gRPC and little else.
"""

from __future__ import annotations

CHECK = "/grpc.health.v1.Health/Check"

UNKNOWN = 0
SERVING = 1
NOT_SERVING = 2
STATES = {UNKNOWN: "UNKNOWN", SERVING: "SERVING", NOT_SERVING: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


def request(service: str) -> bytes:
    """A HealthCheckRequest: asks about a service, or with "" about the server as a whole."""
    name = service.encode()
    return b"\x0a" + _varint(len(name)) + name if name else b""


def status(response: bytes) -> int:
    """What a HealthCheckResponse says: one field, left out when it is 0."""
    return response[1] if len(response) == 2 and response[0] == 0x08 else UNKNOWN


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])
