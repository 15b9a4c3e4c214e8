"""All targets, and how many of the inputs each gets: those that take long get fewer."""

from __future__ import annotations

from tests.security.fuzz.decoders import DECODERS
from tests.security.fuzz.runner import Target
from tests.security.fuzz.services import SERVICES

TARGETS = [*SERVICES, *DECODERS]

_USUAL = 60
_FEWER = {
    **{"agent": 3, "party": 4, "links": 5, "coordinator": 5, "settings": 5, "ledger-file": 6},
    **{"dealer": 10, "client": 10, "plan": 10, "certificate": 10, "token-file": 10},
    **{"enrolment": 20, "spec": 20, "error": 30, "array-file": 30, "part-file": 30, "csr": 30},
    **{"pem": 30, "tensor": 40},
}


def shares(targets: list[Target], inputs: int) -> list[tuple[Target, int]]:
    """How many inputs each of these targets gets."""
    weights = [_FEWER.get(target.name, _USUAL) for target in targets]
    return [
        (target, -(-inputs * weight // sum(weights)))
        for target, weight in zip(targets, weights, strict=True)
    ]
