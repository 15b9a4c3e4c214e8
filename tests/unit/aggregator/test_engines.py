"""A party imports what an engine needs when a round asks for that engine, or refuses the round."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from aggregator.party.servicer import PartyServicer
from mpc_vote.argmax.registry import ENGINES, TABLE
from mpc_vote.errors import ErrorKind
from tests.system.service.support import refused


@pytest.mark.parametrize("package", ["torch", "crypten"])
async def test_a_party_without_crypten_refuses_its_engines_alone(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    binding = "mpc_vote.argmax.crypten.binding"
    monkeypatch.delitem(sys.modules, binding, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    party: Any = SimpleNamespace(_committee=SimpleNamespace(name="party-0"))

    async def ready(kind: Any) -> None:
        spec: Any = SimpleNamespace(engine_kind=kind)
        await PartyServicer._ready(party, spec)

    for kind in ENGINES:
        if kind is not TABLE:
            with refused(ErrorKind.ENGINE_MISSING, f"party-0 has no {package}"):
                await ready(kind)
    await ready(TABLE)
