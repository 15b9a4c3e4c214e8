"""Agents of other kinds than neighbours with classes: attributes, and local models; and plain JSON.

All attend one coordinator: a request finds those that can answer it.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from mpc_vote.client import LabelClient, Plan
from mpc_vote.data.dataset import Dataset
from mpc_vote.data.partition import save_part
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.learning.voters.knn import AttributeVoter
from mpc_vote.learning.voters.local_model import ModelVoter
from mpc_vote.pki.identity import Credentials, Identity, Role, channel_options
from mpc_vote.testbed.cluster import Cluster
from mpc_vote.voting.ballots import MULTI_LABEL, ONE_HOT
from tests.system.service.support import QUIET, points

ATTRIBUTES = 4
CLASSES = 3


def _attributes(seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(80, 5)).astype(np.float32)
    y = (x[:, :ATTRIBUTES] + 0.5 * rng.normal(size=(80, ATTRIBUTES)) > 0).astype(np.int64)
    return Dataset("attributes", x, y, ATTRIBUTES)


FACES = {f"face-{n}": _attributes(n) for n in range(4)}
MODELS = {f"model-{n}": points(50 + n, 60, (6,), CLASSES, 2.0) for n in range(3)}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("kinds")
    agents = {}
    for name, part in {**FACES, **MODELS}.items():
        save_part(directory / f"{name}.npz", part)
        agents[name] = {"data": str(directory / f"{name}.npz"), "k": "7"}
    for number, name in enumerate(MODELS):
        agents[name] |= {"voter": "network", "seed": str(number)}
    running = Cluster(directory, 2, agents)
    running.issue()
    try:
        running.start()
        asyncio.run(running.ready(90))
        yield running
    finally:
        running.stop()


@pytest.fixture
def client(cluster: Cluster) -> Iterator[LabelClient]:
    with LabelClient(cluster.coordinator_address, cluster.client_certs) as one:
        yield one


@pytest.mark.parametrize("tau", [1, 2, ATTRIBUTES])
def test_an_attribute_is_a_yes_when_more_than_half_of_the_agents_say_so(
    client: LabelClient, tau: int
) -> None:
    queries = np.random.default_rng(9).normal(size=(60, 5)).astype(np.float32)
    plan = Plan(classes=ATTRIBUTES, ballot=MULTI_LABEL, tau=tau, sigma=QUIET, collusion=0)
    result = client.label(queries, plan)
    votes = np.zeros((60, ATTRIBUTES), dtype=np.int64)
    for part in FACES.values():
        scores = AttributeVoter(part.x, part.y, ATTRIBUTES, 7).scores(queries)
        votes += MULTI_LABEL.encode(scores, classes=ATTRIBUTES, fraction_bits=0, tau=tau)
    assert (votes == 2).any(), "no tie among these queries: the test would not see its rule"
    assert np.array_equal(result.labels, votes > len(FACES) / 2)
    assert result.contributors == len(FACES)


def test_tau_beyond_the_attributes_is_refused(client: LabelClient) -> None:
    queries = np.zeros((1, 5), dtype=np.float32)
    plan = Plan(classes=ATTRIBUTES, ballot=MULTI_LABEL, tau=ATTRIBUTES + 1, sigma=1)
    with pytest.raises(VoteError) as caught:
        client.label(queries, plan)
    assert caught.value.kind is ErrorKind.TAU_RANGE


def test_no_model_is_trained_on_attributes(client: LabelClient) -> None:
    queries = np.random.default_rng(2).normal(size=(3, 5)).astype(np.float32)
    plan = Plan(classes=ATTRIBUTES, ballot=MULTI_LABEL, tau=2, sigma=QUIET)
    round_id = client.label(queries, plan).round_id
    with pytest.raises(VoteError) as caught:
        client.train([round_id])
    assert caught.value.kind is ErrorKind.MULTI_LABEL_MODEL


def test_local_models_vote_by_their_predictions(client: LabelClient) -> None:
    queries = points(1, 40, (6,), CLASSES, 2.0).x
    result = client.label(queries, Plan(classes=CLASSES, sigma=QUIET))
    votes = np.zeros((40, CLASSES), dtype=np.int64)
    for seed, part in enumerate(MODELS.values()):
        model = ModelVoter.train(part.x, part.y, CLASSES, seed)
        votes += ONE_HOT.encode(model.predict(queries), classes=CLASSES, fraction_bits=0)
    assert np.array_equal(result.labels, votes.argmax(axis=1))


def test_the_service_can_be_called_by_reflection_and_json_alone(cluster: Cluster) -> None:
    """What grpcurl does: no stub, only descriptors that the server hands out."""
    credentials = Credentials.load(cluster.client_certs)
    server = Identity(Role.COORDINATOR, "coordinator")
    queries = points(3, 2, (6,), CLASSES, 2.0).x
    request = {
        "plan": {"classes": CLASSES, "sigma": QUIET},
        "queries": {
            "dtype": "DTYPE_FLOAT32",
            "shape": [2, 6],
            "data": base64.b64encode(queries.tobytes()).decode(),
        },
    }
    with grpc.secure_channel(
        cluster.coordinator_address,
        credentials.channel_credentials(),
        options=channel_options(server),
    ) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "mpcvote.v1.LabelService" in database.get_services()
        pool = descriptor_pool.DescriptorPool(database)
        method = pool.FindServiceByName("mpcvote.v1.LabelService").methods_by_name["RequestLabels"]
        sent = message_factory.GetMessageClass(method.input_type)
        received = message_factory.GetMessageClass(method.output_type)
        call = channel.stream_stream(
            "/mpcvote.v1.LabelService/RequestLabels",
            request_serializer=sent.SerializeToString,
            response_deserializer=received.FromString,
        )
        message = json_format.Parse(json.dumps(request), sent(), descriptor_pool=pool)
        answers = [json_format.MessageToDict(a) for a in call(iter([message]), timeout=60)]
    labels = next(answer["labels"] for answer in answers if "labels" in answer)
    assert len(labels["values"]) == 2
    assert answers[-1]["completed"]["contributors"] == len(MODELS)
