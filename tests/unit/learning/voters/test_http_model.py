"""A model behind HTTP votes by a protocol that is checked at every step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpc_vote.learning.voters import ModelInputs, Voter, VoterOptions, make_voter
from mpc_vote.learning.voters.http_model import _is_here
from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import Identity, Role
from mpc_vote.tasks import TableInput, Task
from mpc_vote.voting.ballots import ONE_HOT
from tests.unit.learning.voters.inference_server import PATH, Model, serving
from tests.unit.learning.voters.tasks import TABLE, VECTORS

ROWS = np.array([[-2, 0, 0], [0.1, 0, 0], [2, 0, 0]], np.float32)


def by_scores(x: Any) -> dict[str, Any]:
    return {"scores": np.stack([-x[:, 0], np.ones(len(x)), x[:, 0]], axis=1)}


def scorer(**changes: Any) -> Model:
    settings: dict[str, Any] = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "scores", "datatype": "FP64", "shape": [-1, 3]}],
        "predict": by_scores,
    }
    return Model(**{**settings, **changes})


def voter(url: str, task: Task = VECTORS, **options: Any) -> Voter:
    return make_voter("http", None, VoterOptions(task=task, model=url, **options))


def test_the_highest_score_is_voted_for_in_batches() -> None:
    model = scorer()
    with serving(model) as url:
        assert voter(url).vote(np.tile(ROWS, (100, 1)), ONE_HOT).tolist() == [0, 1, 2] * 100
    paths = [path for path, _ in model.asked]
    assert paths == [PATH, *[f"{PATH}/infer"] * 3]
    assert model.asked[-1][1]["outputs"] == [{"name": "scores"}]


def test_a_version_can_be_named() -> None:
    model = scorer()
    with serving(model) as url:
        assert voter(f"{url}/versions/1").vote(ROWS, ONE_HOT).tolist() == [0, 1, 2]
    assert model.asked[-1][0] == f"{PATH}/versions/1/infer"


def test_labels_by_name_are_taken_before_scores() -> None:
    model = scorer(
        outputs=[
            {"name": "scores", "datatype": "FP64", "shape": [-1, 3]},
            {"name": "label", "datatype": "BYTES", "shape": [-1]},
        ],
        predict=lambda x: {"label": np.where(x[:, 0] > 0, "plus", "minus")},
    )
    with serving(model) as url:
        assert voter(url).vote(ROWS, ONE_HOT).tolist() == [0, 2, 2]


def test_columns_go_by_name() -> None:
    model = Model(
        inputs=[
            {"name": "age", "datatype": "FP64", "shape": [-1, 1]},
            {"name": "ward", "datatype": "BYTES", "shape": [-1, 1]},
        ],
        outputs=[{"name": "label", "datatype": "INT64", "shape": [-1, 1]}],
        predict=lambda age, ward: {"label": ((age > 60) | (ward == "b")).astype(int)},
    )
    assert isinstance(TABLE.input, TableInput)
    rows = TABLE.input.encode({"age": [50, 70, 50], "ward": ["a", "a", "b"]})
    with serving(model) as url:
        made = voter(url, TABLE, inputs=ModelInputs.RAW)
        assert made.vote(rows, ONE_HOT).tolist() == [0, 1, 1]


def test_a_missing_number_is_null_which_a_service_must_take() -> None:
    assert isinstance(TABLE.input, TableInput)
    model = Model(
        inputs=[{"name": "age", "datatype": "FP32", "shape": [-1, 1]}],
        outputs=[{"name": "label", "datatype": "INT64", "shape": [-1]}],
        predict=lambda age: {"label": np.isnan(age[:, 0]).astype(int)},
    )
    rows = TABLE.input.encode({"age": [50, None], "ward": ["a", "b"]})
    with serving(model) as url:
        made = voter(url, TABLE, inputs=ModelInputs.RAW)
        assert made.vote(rows, ONE_HOT).tolist() == [0, 1]
        assert model.asked[-1][1]["inputs"][0]["data"] == [50, None]

    def strict(age: Any) -> dict[str, Any]:
        return {"label": np.zeros(len(age) - int(np.isnan(age).any()), int)}

    model.predict = strict
    with serving(model) as url, pytest.raises(ValueError, match="not where values are missing"):
        voter(url, TABLE, inputs=ModelInputs.RAW)


def test_tls_is_checked_against_the_owners_authority(tmp_path: Path) -> None:
    authority = CertificateAuthority.create(tmp_path / "ca")
    authority.issue(Identity(Role.DEALER, "model"), tmp_path / "model", hosts=["localhost"])
    pair = str(tmp_path / "model" / "cert.pem"), str(tmp_path / "model" / "key.pem")
    with serving(scorer(), pair) as url:
        made = voter(url, ca=tmp_path / "model" / "ca.pem")
        assert made.vote(ROWS, ONE_HOT).tolist() == [0, 1, 2]
        with pytest.raises(ValueError, match="certificate"):
            voter(url)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]}, "shape"),
        ({"inputs": [{"name": "x", "datatype": "FP8", "shape": [-1, 3]}]}, "unknown here"),
        ({"inputs": []}, "says nothing of its inputs"),
        (
            {"outputs": [{"name": "scores", "datatype": "FP64", "shape": [-1, 7]}]},
            "no output with labels or 3 scores",
        ),
        ({"predict": lambda x: {"scores": np.zeros((1, 3))}}, "2 rows got an output of 1"),
        ({"predict": lambda x: {"scores": np.full((len(x), 3), np.nan)}}, "NaN"),
        ({"override": lambda _: (503, {}, b"busy")}, "503, not 200"),
        ({"override": lambda _: (302, {"Location": "http://elsewhere/"}, b"")}, "302, not 200"),
        ({"override": lambda _: (200, {}, b"[" * 100_000)}, "not answered with JSON"),
        ({"override": lambda _: (200, {}, b"[]")}, "no object of JSON"),
        ({"override": lambda _: (200, {}, b" " * (1 << 21))}, "over 1,048,576 bytes"),
    ],
)
def test_what_does_not_work_is_said_at_the_start(changes: dict[str, Any], why: str) -> None:
    with serving(scorer(**changes)) as url, pytest.raises(ValueError, match=why):
        voter(url)


def answered(shape: list[int], data: Any, datatype: str = "FP64") -> Callable[[str], Any]:
    output = {"name": "scores", "datatype": datatype, "shape": shape, "data": data}
    body = json.dumps({"outputs": [output]}).encode()
    return lambda path: (200, {}, body) if path.endswith("infer") else None


@pytest.mark.parametrize(
    "override",
    [
        answered([2, 3], [0.0] * 5),
        answered([2, 3], ["a"] * 6),
        answered([2, -3], [0.0] * 6),
        answered([2, 3], {"a": 1}),
        answered([10**9, 10**9], [0.0]),
        lambda path: (200, {}, b'{"outputs": [{"name": "other"}]}') if "infer" in path else None,
    ],
)
def test_tensors_that_make_no_sense_are_refused(override: Any) -> None:
    with serving(scorer(override=override)) as url, pytest.raises(ValueError, match="output"):
        voter(url)


@pytest.mark.parametrize("data", [[0.9, 1.9], [True, False], [2**70, 1], [300, 1], [None, 1]])
def test_labels_that_are_not_of_their_type_are_refused(data: list[Any]) -> None:
    outputs = [{"name": "scores", "datatype": "UINT8", "shape": [-1]}]
    model = scorer(outputs=outputs, override=answered([2], data, "UINT8"))
    with serving(model) as url, pytest.raises(ValueError, match="is not of the shape or type"):
        voter(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "URL such as"),
        ("model.onnx", "URL such as"),
        ("ftp://localhost/v2/models/x", "URL such as"),
        ("http://localhost/v1/models/x", "URL such as"),
        ("http://me:secret@localhost/v2/models/x", "URL such as"),
        ("http://model.example/v2/models/x", "another machine"),
        ("http://10.0.0.7:80/v2/models/x", "another machine"),
        ("http://localhost:1/v2/models/x", "can't be asked"),
    ],
)
def test_addresses_are_checked(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        voter(url)
    assert "secret" not in str(caught.value)


def test_votes_without_tls_need_the_owners_word() -> None:
    with pytest.raises(ValueError, match="can't be asked"):
        voter("http://model.invalid:1/v2/models/x", plain_http=True)


@pytest.mark.parametrize(
    ("host", "here"),
    [("localhost", True), ("127.0.0.9", True), ("::1", True), ("10.0.0.1", False)],
)
def test_this_machine_is_known(host: str, here: bool) -> None:
    assert _is_here(host) is here
