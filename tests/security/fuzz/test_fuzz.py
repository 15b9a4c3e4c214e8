"""The short run: all that was ever found, and some thousands of inputs that nobody has seen."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError

from mpc_vote.proto.mpcvote.v1 import common_pb2, dealer_pb2
from tests.security.fuzz.mutate import Call, Script, of_bytes, of_scripts
from tests.security.fuzz.runner import CORPUS

_ROOT = Path(__file__).parents[3]
_INPUTS = 4_000
# Longer than it takes on a busy machine.
_SECONDS = 110.0


def test_no_input_crashes_hangs_or_exhausts_a_role() -> None:
    """Each input is accepted or refused in words of the catalogue, in bounded time and memory."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.security.fuzz",
            f"--inputs={_INPUTS}",
            "--seed=7",
            "--jobs=2",
        ],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert done.stdout.strip().endswith(" 0 findings"), done.stdout[-4000:]


def test_every_folder_of_the_corpus_has_its_target() -> None:
    """An input that is kept is also played."""
    from tests.security.fuzz.targets import TARGETS

    assert {path.name for path in CORPUS.iterdir()} <= {target.name for target in TARGETS}


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_gives_the_same_inputs_again(seed: int) -> None:
    """Or a finding could not be looked at."""
    message = common_pb2.RoundSpec(round_id="r", parties=["a", "b"], queries=3)
    data = Script(1, (Call(0, 2, (message.SerializeToString(), b"x")),)).encode()
    for mutate in (of_scripts(common_pb2.RoundSpec), of_bytes((b"word",))):
        first, again = random.Random(seed), random.Random(seed)
        for _ in range(50):
            assert mutate(data, data, first) == mutate(data, data, again)


def test_scripts_are_read_as_they_were_written() -> None:
    script = Script(3, (Call(1, 2, (b"", b"abc")), Call(0, 0, ()), Call(5, 1, (b"x" * 70_000,))))
    assert Script.decode(script.encode()) == script


def test_most_changed_messages_are_still_messages() -> None:
    """A fuzzer whose inputs all fail in the parser would look at nothing else."""
    request = dealer_pb2.DealRequest(session_id="s", parties=["a", "b"])
    item = request.plan.add(times=2).items.add()
    item.triples.count = 5
    data = Script(0, (Call(0, 0, (request.SerializeToString(),)),)).encode()
    rng, readable = random.Random(3), 0
    for _ in range(500):
        for call in Script.decode(of_scripts(dealer_pb2.DealRequest)(data, data, rng)).calls:
            for message in call.messages:
                with contextlib.suppress(DecodeError):
                    readable += dealer_pb2.DealRequest.FromString(message) is not None
    assert readable > 300
