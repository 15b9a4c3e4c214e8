"""What the service learns from, chosen before anything is read into memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from aggregator import models
from aggregator.archive import Archive
from aggregator.models import ModelServicer
from mpc_vote.errors import ErrorKind
from mpc_vote.proto.mpcvote.v1 import label_pb2
from mpc_vote.spec import Spec
from tests.fuzz.decoders import spec_message
from tests.service.support import refused

ROWS, WIDTH = 5, 2


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Three complete rounds of one client."""
    made = Archive(tmp_path)
    for number in range(3):
        spec = Spec.seal(spec_message(round_id=f"round-{number}"))
        made.open_round("client", "", b"", spec, np.zeros((ROWS, WIDTH), np.float32))
        labels = np.full(ROWS, number, np.uint32)
        made.complete_round(label_pb2.RoundCompleted(round_id=spec.round_id), labels)
    return made


def test_no_more_is_learnt_from_than_fits(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may have any number of rounds, and leave it to the service which to take."""
    service = ModelServicer(archive, 1e-3)
    monkeypatch.setattr(models, "_MAX_BYTES", 2 * ROWS * WIDTH * 4)
    for wanted in ([], ["round-0", "round-1", "round-2"]):
        with refused(ErrorKind.ROUNDS_TOO_LARGE, "120 bytes as float32"):
            service._rounds("client", wanted)
    assert len(service._rounds("client", ["round-2", "round-0"])) == 2


def test_rounds_are_listed_without_their_labels(archive: Archive) -> None:
    rounds = archive.rounds("client")
    assert [record.labels for record in rounds] == [None] * 3
    assert archive.labels([rounds[2], rounds[0]]).tolist() == [2] * ROWS + [0] * ROWS
