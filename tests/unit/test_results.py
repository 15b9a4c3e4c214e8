"""What clients are given is plain, and holds all that came over the wire."""

from __future__ import annotations

import datetime as dt
from dataclasses import fields

import pytest

from mpc_vote.proto.mpcvote.v1 import common_pb2, model_pb2
from mpc_vote.results import Cost, Model

# What a description says beside a plain model: of the wire, or known from the task.
OF_THE_WIRE = {"query_dtype", "query_shape", "task_digest", "trained_unix_ms"}


def test_a_cost_has_every_figure_of_the_message() -> None:
    names = [field.name for field in common_pb2.Cost.DESCRIPTOR.fields]
    message = common_pb2.Cost(**{name: place + 1 for place, name in enumerate(names)})
    cost = Cost.from_message(message)
    assert vars(cost) == {name: place + 1 for place, name in enumerate(names)}


def test_a_model_has_every_field_of_the_message_or_its_meaning() -> None:
    told = {field.name for field in model_pb2.Model.DESCRIPTOR.fields}
    assert {field.name for field in fields(Model)} == (told - OF_THE_WIRE) | {"trained"}
    message = model_pb2.Model(
        version=2, round_ids=["a"], metrics={"loss": 0.5}, trained_unix_ms=1_500, sha256=b"x"
    )
    model = Model.from_message(message)
    assert (model.version, model.round_ids, model.metrics) == (2, ("a",), {"loss": 0.5})
    assert model.trained == dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, dt.UTC)


def test_a_time_that_a_lying_service_makes_up_is_no_error() -> None:
    model = Model.from_message(model_pb2.Model(trained_unix_ms=2**62))
    assert model.trained == dt.datetime.fromtimestamp(0, dt.UTC)


@pytest.mark.parametrize(
    ("metrics", "little"),
    [
        ({"agreement": 0.94, "agreement_commonest": 0.94}, True),
        ({"agreement": 0.95, "agreement_commonest": 0.94}, False),
        # What it says of labels that it was shown is no evidence, if some were held out.
        ({"agreement": 1.0, "agreement_linear": 0.93, "agreement_commonest": 0.94}, True),
        ({"agreement": 1.0, "agreement_linear": 0.96, "agreement_commonest": 0.94}, False),
        ({"loss": 0.5, "agreement_commonest": 0.94}, False),
        ({"agreement": 0.94}, False),
    ],
)
def test_a_model_is_held_against_always_saying_the_commonest_label(
    metrics: dict[str, float], little: bool
) -> None:
    assert Model.from_message(model_pb2.Model(metrics=metrics)).says_little is little
