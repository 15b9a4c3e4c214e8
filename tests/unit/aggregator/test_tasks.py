"""Tasks at the coordinator: whose offers it takes, who is on a roster, and what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator.coordinator import attendance, command, model_service
from aggregator.coordinator.archive import Archive
from aggregator.coordinator.attendance import Attendance, find_task
from aggregator.coordinator.label_service import LabelServicer
from aggregator.coordinator.model_service import ModelServicer
from aggregator.coordinator.planner import make_spec
from aggregator.coordinator.roster import Defaults
from aggregator.coordinator.settings import CoordinatorSettings
from mpc_vote.app import config
from mpc_vote.app.config import ConfigError
from mpc_vote.argmax.registry import TABLE
from mpc_vote.client import Plan
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.proto.mpcvote.v1 import agent_pb2, common_pb2, label_pb2, model_pb2
from mpc_vote.tasks import Task, agreement
from mpc_vote.tasks.toml import dump
from mpc_vote.voting.limits import MAX_TASKS
from mpc_vote.voting.spec import Spec
from tests.security.fuzz.decoders import spec_message
from tests.system.service.support import refused

ROWS = np.ones((4, 2), np.float32)


def task(name: str, k: int = 5) -> Task:
    return Task.parse(
        f'format = 1\nname = "{name}"\nclasses = ["yes", "no", "perhaps"]\n'
        '[input]\nkind = "vector"\nshape = [2]\n[features]\nmap = "raw"\n'
        f'[vote]\nballot = "knn_count"\nk = {k}\n'
    )


ONE, TWO = task("one"), task("two", 2_000)
PLAIN = common_pb2.Offer(
    classes=3,
    query_dtype=common_pb2.DTYPE_FLOAT32,
    query_shape=[2],
    ballots=[common_pb2.BALLOT_KIND_KNN_COUNT],
    k=7,
)
DEFAULTS = Defaults(
    ("p", "q"), "dealer", TABLE, 0.5, 0.0, 1e-3, 0.8, 0, 60, 1, 1_000, {"one": ONE, "two": TWO}
)


def agent(*offers: common_pb2.Offer | Task) -> agent_pb2.Capabilities:
    made = [agreement.offer_of(one) if isinstance(one, Task) else one for one in offers]
    return agent_pb2.Capabilities(offers=made, ledger_id="a" * 32, process_id="b" * 32)


PRESENT = {"ann": agent(ONE, TWO), "bob": agent(ONE, PLAIN), "cleo": agent(PLAIN)}


def spec(plan: label_pb2.LabelPlan, present: Any = PRESENT) -> Spec:
    return make_spec(plan, ROWS, present, DEFAULTS, 0.001)


def test_rosters_are_of_one_task() -> None:
    found = [spec(Plan(task=one).message()) for one in (ONE, TWO)]
    found.append(spec(Plan(classes=3).message()))
    assert [one.roster for one in found] == [
        {"ann": 5, "bob": 5},
        # More than the service takes of agents without a task: this k is its own task's.
        {"ann": 2_000},
        {"bob": 7, "cleo": 7},
    ]
    assert [(one.task, one.message.task_digest) for one in found] == [
        ("one", ONE.digest),
        ("two", TWO.digest),
        ("", b""),
    ]


def test_a_plan_need_not_say_what_its_task_says() -> None:
    named = spec(label_pb2.LabelPlan(task="one"))
    assert (named.message.classes, named.message.task_digest) == (3, ONE.digest)
    for changes in ({"classes": 4}, {"ballot": common_pb2.BALLOT_KIND_ONE_HOT}, {"tau": 1}):
        with refused(ErrorKind.TASK_CONTRADICTED, "task one has"):
            spec(label_pb2.LabelPlan(task="one", **changes))


def test_nobody_is_asked_who_does_not_answer_the_task() -> None:
    with refused(ErrorKind.TASK_UNATTENDED, "two"):
        spec(Plan(task=TWO).message(), {"cleo": agent(PLAIN)})
    with refused(ErrorKind.TASK_MISSING, "one, two"):
        spec(Plan(classes=3).message(), {"ann": agent(ONE, TWO)})
    with refused(ErrorKind.TASK_UNKNOWN, "but one, two"):
        spec(Plan(task=task("three")).message())
    with refused(ErrorKind.TASK_DIFFERS, ONE.digest.hex()[:12], task("one", 6).digest.hex()[:12]):
        spec(Plan(task=task("one", 6)).message())


def test_offers_are_bounded_and_of_different_tasks() -> None:
    attendance._check_capabilities(agent(*(task(f"t-{n}") for n in range(MAX_TASKS))))
    for wrong in (
        agent(),
        agent(ONE, ONE),
        agent(PLAIN, PLAIN),
        agent(*(task(f"t-{n}") for n in range(MAX_TASKS + 1))),
    ):
        with refused(ErrorKind.SPEC_INVALID, f"1 to {MAX_TASKS} offers, each of another task"):
            attendance._check_capabilities(wrong)
    for changes in ({"task": "one"}, {"task_digest": ONE.digest}):
        half = common_pb2.Offer()
        half.MergeFrom(PLAIN)
        half.MergeFrom(common_pb2.Offer(**changes))
        with refused(ErrorKind.SPEC_INVALID, "or neither"):
            attendance._check_capabilities(agent(half))


def test_an_offer_must_be_what_its_task_says(tmp_path: Path) -> None:
    present = Attendance(Archive(tmp_path), (), {"one": ONE})
    present._check_task("ann", agreement.offer_of(ONE))
    present._check_task("ann", PLAIN)
    for change in ({"k": 6}, {"classes": 4}, {"query_shape": [3]}, {"ballots": [1]}):
        lie = agreement.offer_of(ONE)
        lie.MergeFrom(common_pb2.Offer(**change))
        with refused(ErrorKind.SPEC_INVALID, "not what task one says"):
            present._check_task("ann", lie)
    later = agreement.offer_of(ONE)
    later.MergeFromString(b"\xc2\x3e\x01x")
    present._check_task("ann", later)


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    """A round of a task that is served no more, one of its successor, and one without."""
    made = Archive(tmp_path / "archive")
    old = task("one", 3)
    for one in (old, ONE):
        made.add_task(one)
        made.add_task(one)
    for name, digest in (("old", old.digest), ("new", ONE.digest), ("none", b"")):
        about = {"task": "one", "task_digest": digest} if digest else {}
        sealed = Spec.seal(spec_message(round_id=name, **about))
        made.open_round("client", "", b"", sealed, np.zeros((5, 2), np.float32))
        labels = np.array([0, 1, 2, 1, 0], np.uint32)
        made.complete_round(label_pb2.RoundCompleted(round_id=name), labels)
    yield made
    made.close()


def test_labels_of_old_rounds_keep_their_names(archive: Archive) -> None:
    nothing: Any = None
    service = LabelServicer(archive, nothing, nothing, nothing, nothing, DEFAULTS, 4)
    found = service._round("client", "old")
    kept = agreement.from_wire(found.task, "The coordinator")
    assert kept == task("one", 3) != ONE
    assert kept.names(np.array(found.labels.values)) == ["yes", "no", "perhaps", "no", "yes"]
    assert found.round.task == "one"
    assert not service._round("client", "none").HasField("task")


def test_tasks_are_found_by_name_and_by_digest(archive: Archive) -> None:
    def find(**wanted: Any) -> Task:
        request = common_pb2.GetTaskRequest(**wanted)
        found = find_task(request, {"one": ONE}, archive)
        return agreement.from_wire(found.task, "The coordinator")

    old = task("one", 3)
    assert find(name="one") == ONE
    assert find(digest=old.digest) == find(name="one", digest=old.digest) == old
    for wrong in (
        {},
        {"name": "two"},
        {"digest": bytes(32)},
        {"name": "two", "digest": old.digest},
    ):
        with refused(ErrorKind.TASK_UNKNOWN, "but one"):
            find(**wrong)
    with refused(ErrorKind.SPEC_INVALID, "too long"):
        find(name="x" * 2_000)


def test_a_model_learns_from_rounds_of_one_task(archive: Archive) -> None:
    service = ModelServicer(archive, 1e-3)

    def rounds(**wanted: Any) -> list[str]:
        found = service._rounds("client", model_pb2.TrainRequest(**wanted))
        return [record.round_id for record in found]

    assert rounds(task_digest=ONE.digest) == ["new"]
    assert rounds(task_digest=task("one", 3).digest) == ["old"]
    assert rounds() == ["none"], "those like the newest"
    for wanted in (["old", "new"], ["new", "none"]):
        with refused(ErrorKind.ROUNDS_UNLIKE):
            rounds(round_ids=wanted)
    with refused(ErrorKind.ROUNDS_UNLIKE, "not of the task"):
        rounds(round_ids=["old"], task_digest=ONE.digest)
    with refused(ErrorKind.NOTHING_LABELLED):
        rounds(task_digest=TWO.digest)


def test_it_does_so_in_the_tasks_feature_map(archive: Archive) -> None:
    with refused(ErrorKind.TASK_CONTRADICTED, "features is unit, and task one has raw"):
        model_service._check_features("unit", spec_message(), ONE)
    unit = replace(ONE, features=replace(ONE.features, map="unit"))
    points = ModelServicer(archive, 1e-3)._features(unit)(np.array([[3.0, 4.0]], np.float32))
    assert points.tolist() == [[np.float32(0.6), np.float32(0.8)]]


PICTURES = Task.parse(
    'format = 1\nname = "pictures"\nclasses = ["a", "b"]\n[input]\nkind = "image"\nheight = 8\n'
    'width = 8\nchannels = 3\n[features]\nmap = "backbone"\nbackbone = "resnet18"\n'
    f'sha256 = "{"0" * 64}"\n[vote]\nballot = "one_hot"\n'
)


def test_a_coordinator_has_weights_of_its_own_or_says_that_it_lacks_them(
    archive: Archive, tmp_path: Path
) -> None:
    """To the client by what it is, and not by where: its log says more."""
    weights = tmp_path / "weights.safetensors"
    given = ModelServicer(archive, 1e-3, weights={"pictures": weights})
    with refused(ErrorKind.FEATURES_MISSING, "task pictures (FileNotFoundError)"):
        given._features(PICTURES)
    weights.write_bytes(b"others")
    with pytest.raises(VoteError, match="--weights pictures=PATH") as caught:
        given._features(PICTURES)
    assert "ValueError" in caught.value.message and str(tmp_path) not in caught.value.message
    assert "not the weights that the task was made with" in str(caught.value.__cause__)


def test_weights_are_for_tasks_that_are_served_and_have_some(tmp_path: Path) -> None:
    tasks, path = {"one": ONE, "pictures": PICTURES}, tmp_path / "weights.safetensors"
    with pytest.raises(ConfigError, match="no such file or folder"):
        command._check_weights({"pictures": path}, tasks)
    path.touch()
    command._check_weights({"pictures": path}, tasks)
    with pytest.raises(ConfigError, match="--weights: there is no task two"):
        command._check_weights({"two": path}, tasks)
    with pytest.raises(ConfigError, match="the feature map raw has no weights"):
        command._check_weights({"one": path}, tasks)
    required = ["--certs=x", "--data-dir=x", "--parties=a=h:1,b=h:2"]
    settings = config.load(CoordinatorSettings, [*required, f"--weights=pictures={path}"])
    assert settings.weights == {"pictures": path}


def test_files_of_tasks_are_checked_when_a_coordinator_starts(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.toml", "b.toml", "c.toml")]
    paths[0].write_text(dump(ONE))
    paths[1].write_text(dump(TWO))
    paths[2].write_text(dump(replace(ONE, features=replace(ONE.features, map="standard"))))
    assert command._tasks(paths[:2]) == {"one": ONE, "two": TWO}
    with pytest.raises(ConfigError, match="there is a task one already"):
        command._tasks([paths[0], paths[0]])
    with pytest.raises(ConfigError, match=r"--task: .*standard"):
        command._tasks(paths[2:])
