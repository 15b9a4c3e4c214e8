"""An engine is a class, its registration, and a message of its items: everything else takes it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor

from aggregator.coordinator.planner import make_spec
from aggregator.coordinator.roster import Defaults
from aggregator.coordinator.settings import CoordinatorSettings
from mpc_vote import cli
from mpc_vote.app.config import ConfigError, load
from mpc_vote.argmax.engine import AddedLabels, Engine, LabelCode, reduced
from mpc_vote.argmax.registry import ENGINES, TABLE, EngineKind, Table
from mpc_vote.argmax.table.engine import TableArgmax
from mpc_vote.argmax.table.level import LevelPart, LevelTables
from mpc_vote.client import Plan as Asked
from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.mpc import cut_and_choose
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.in_process import LocalPreprocessing, run_committee
from mpc_vote.mpc.preprocessing import Item, Preprocessing, PreprocessingPlan, Run, require
from mpc_vote.mpc.prg import Words, new_seed
from mpc_vote.proto.mpcvote.v1 import agent_pb2, common_pb2, dealer_pb2
from mpc_vote.simulation.vote import simulated_spec, vote
from mpc_vote.testbed.bench import cases
from mpc_vote.transport import tensors
from mpc_vote.voting import codec, planning
from mpc_vote.voting import spec as specs
from mpc_vote.voting.ballots import ONE_HOT
from mpc_vote.voting.spec import Spec

QUERIES, CLASSES, QUIET = 30, 7, 1e-5
NAMES = [f"agent-{number}" for number in range(5)]
MAX_ROWS = 1_000


@dataclass(frozen=True)
class Bundle(Item[LevelPart]):
    """All that one run takes, where all classes meet at once."""

    wire_name: ClassVar[str] = "bundle"

    rows: int
    classes: int
    bits: int

    def check(self) -> None:
        require(0 < self.rows <= MAX_ROWS, "the rows of a bundle")
        self.tables.check()

    @property
    def tables(self) -> LevelTables:
        (item,) = TableArgmax(self.bits).plan(self.rows, self.classes, 2)
        assert isinstance(item, LevelTables)
        return item

    @property
    def correction_bytes(self) -> int:
        return self.tables.correction_bytes

    @property
    def part_bytes(self) -> int:
        return self.tables.part_bytes

    def expand(self, seed: bytes, index: int, correction: bytes | None) -> LevelPart:
        return self.tables.expand(seed, index, correction)

    def correct(self, seeds: Sequence[bytes], index: int) -> bytes:
        return self.tables.correct(seeds, index)


class BundledArgmax:
    """The table engine with preprocessing of its own."""

    name = "bundled all pairs"

    def __init__(self, bits: int) -> None:
        self._table = TableArgmax(bits)
        self.ring_bits = bits

    def largest_total(self, classes: int) -> int:
        return self._table.largest_total(classes)

    def block_rows(self, classes: int) -> int:
        return 16

    def plan(self, rows: int, classes: int, parties: int) -> list[Item[Any]]:
        return [Bundle(rows, classes, self.ring_bits)]

    def label_code(self, classes: int) -> LabelCode:
        return AddedLabels(classes)

    def run(
        self, totals: Words, classes: int, channel: Channel, preprocessing: Preprocessing
    ) -> Words:
        bundle = Bundle(len(totals) // classes, classes, self.ring_bits)

        class Unpacked:
            def take(self, item: Item[Any]) -> Any:
                assert item == bundle.tables
                return preprocessing.take(bundle)

        return self._table.run(totals, classes, channel, Unpacked())


class Bundled(EngineKind):
    """How it is made."""

    items = (Bundle,)
    name = "bundled"
    code = common_pb2.Engine.ValueType(1_077)

    def ring_bits(self, bound: int) -> int:
        return TABLE.ring_bits(bound)

    def make(self, bits: int, groups: Sequence[int] = (), two_rounds: bool = False) -> Engine:
        if groups or two_rounds:
            raise ValueError("the bundled engine has no groups")
        return BundledArgmax(bits)


@pytest.fixture
def bundled() -> Iterator[Bundled]:
    kind = Bundled()
    ENGINES.register(kind)
    specs._parsed.cache_clear()
    try:
        yield kind
    finally:
        ENGINES.unregister(kind)
        specs._parsed.cache_clear()


def made(kind: EngineKind, parties: int = 2) -> Spec:
    """A round of one-hot votes almost without noise."""
    roster = dict.fromkeys(NAMES, 0)
    drafted = planning.draft(
        ONE_HOT,
        round_id="round",
        queries=QUERIES,
        query_dtype=common_pb2.DTYPE_FLOAT32,
        query_shape=[1],
        classes=CLASSES,
        sigma=QUIET,
        roster=roster,
        quorum=len(roster),
        collusion=0,
        parties=[f"party-{rank}" for rank in range(parties)],
        dealer="dealer",
    )
    return planning.complete(drafted, bytes(32), kind, 0.0)


@pytest.mark.parametrize("parties", [2, 3])
def test_a_whole_vote(bundled: Bundled, parties: int) -> None:
    spec, rng = made(bundled, parties), np.random.default_rng(parties)
    cast = {name: spec.encode(name, rng.integers(CLASSES, size=QUERIES)) for name in NAMES}
    labels = vote(spec, cast, 0)[:, 0]
    assert np.array_equal(labels, np.argmax(sum(cast.values()), axis=1))
    roster = dict.fromkeys(NAMES, 0)
    usual = simulated_spec(ONE_HOT, QUERIES, CLASSES, roster, QUIET, parties=parties)
    assert np.array_equal(labels, vote(usual, cast, 0)[:, 0])


def test_a_spec_comes_through_the_wire(bundled: Bundled) -> None:
    spec = made(bundled)
    again = Spec.parse(spec.wire)
    assert (again.message, again.digest) == (spec.message, spec.digest)
    assert isinstance(again.engine, BundledArgmax)
    assert again.engine.ring_bits == spec.message.ring_bits
    plan = again.plan()
    assert [(run.items, run.times) for run in plan.runs] == [
        ((Bundle(16, CLASSES, spec.message.ring_bits),), 1),
        ((Bundle(14, CLASSES, spec.message.ring_bits),), 1),
    ]
    bits = spec.message.ring_bits
    assert plan.text == f'[[1,["bundle",16,7,{bits}]],[1,["bundle",14,7,{bits}]]]'
    assert plan.digest != made(TABLE).plan().digest


def test_a_spec_that_does_not_suit_it_is_refused(bundled: Bundled) -> None:
    message = made(bundled).message
    message.groups.append(4)
    with pytest.raises(VoteError, match="the bundled engine has no groups"):
        Spec.seal(message)


def test_a_spec_of_an_unknown_engine_is_refused() -> None:
    message = made(TABLE).message
    message.engine = Bundled.code
    with pytest.raises(VoteError, match="the engine is unknown"):
        Spec.seal(message)


def test_its_items_are_dealt_and_committed_to(bundled: Bundled) -> None:
    """As a dealer does, from the seeds of all parties."""
    plan = PreprocessingPlan((Run((Bundle(8, 3, 14),), 2),))
    keys = [[new_seed() for _ in range(3)] for _ in range(2)]
    digests = [cut_and_choose.commit(item, keys, index) for index, item in enumerate(plan)]
    assert len(digests) == 2 and digests[0] != digests[1]
    totals = np.random.default_rng(0).integers(-9, 9, (8, 3))
    shares = np.zeros((3, 24), np.uint64)
    shares[1] = totals.reshape(-1).view(np.uint64)

    def party(channel: Channel, _: Preprocessing) -> Words:
        preprocessing = LocalPreprocessing(keys[0], channel.rank)
        return bundled.make(14).run(shares[channel.rank], 3, channel, preprocessing)

    found = np.sum(run_committee(3, party), axis=0, dtype=np.uint64)
    assert reduced(np.asarray(found), 3).tolist() == totals.argmax(axis=1).tolist()


@pytest.fixture
def with_its_message(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`dealer.proto` with a message for a bundle: the one file beside the engine's own."""
    pool = descriptor_pool.DescriptorPool()

    def add(file: FileDescriptor) -> None:
        for needed in file.dependencies:
            add(needed)
        described = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(described)
        if file.name == dealer_pb2.DESCRIPTOR.name:
            _add_message(described)
        pool.Add(described)

    add(dealer_pb2.DESCRIPTOR)
    classes = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"mpcvote.v1.{name}"))
        for name in ("DealRun", "DealItem")
    }
    monkeypatch.setattr(codec, "dealer_pb2", SimpleNamespace(**classes))
    return classes["DealRun"]


def _add_message(file: descriptor_pb2.FileDescriptorProto) -> None:
    field = descriptor_pb2.FieldDescriptorProto
    message = file.message_type.add(name="BundleItem")
    for number, name in enumerate(("rows", "classes", "bits"), start=1):
        message.field.add(
            name=name, number=number, type=field.TYPE_UINT32, label=field.LABEL_OPTIONAL
        )
    (item,) = (one for one in file.message_type if one.name == "DealItem")
    item.field.add(
        name="bundle",
        number=100,
        type=field.TYPE_MESSAGE,
        type_name=".mpcvote.v1.BundleItem",
        label=field.LABEL_OPTIONAL,
        oneof_index=0,
    )


def test_its_plans_come_through_the_wire(bundled: Bundled, with_its_message: Any) -> None:
    items = (Bundle(16, CLASSES, 14), LevelTables(8, 4, 16, 2, False, True))
    plan = PreprocessingPlan((*made(bundled).plan().runs, Run(items, 3)))
    sent = [run.SerializeToString() for run in codec.to_wire(plan)]
    assert codec.from_wire(list(map(with_its_message.FromString, sent))) == plan


@pytest.mark.parametrize("wrong", [(0, 3, 14), (MAX_ROWS + 1, 3, 14), (1, 3, 2), (1, 1_000, 14)])
def test_a_dealer_refuses_what_it_could_not_make(
    bundled: Bundled, with_its_message: Any, wrong: tuple[int, int, int]
) -> None:
    runs = codec.to_wire(PreprocessingPlan((Run((Bundle(*wrong),), 1),)))
    with pytest.raises(VoteError) as caught:
        codec.from_wire(runs)
    assert caught.value.kind is ErrorKind.DEAL_INVALID


def test_a_dealer_without_the_engine_refuses_its_items(with_its_message: Any) -> None:
    runs = codec.to_wire(PreprocessingPlan((Run((Bundle(8, 3, 14),), 1),)))
    with pytest.raises(VoteError) as caught:
        codec.from_wire(runs)
    assert caught.value.kind is ErrorKind.DEAL_INVALID


def test_no_item_takes_the_place_of_another(
    bundled: Bundled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Bundle, "wire_name", LevelTables.wire_name)
    runs = codec.to_wire(PreprocessingPlan((Run((LevelTables(8, 4, 16, 2, False, True),), 1),)))
    with pytest.raises(ValueError, match="two kinds of items are called 'level'"):
        codec.from_wire(runs)


COORDINATOR = ["--certs=c", "--data-dir=d", "--parties=a=h:1,b=h:2"]


def test_it_can_be_chosen(bundled: Bundled, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["coordinator", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "accelerated_cascade,bundled} how the winner is found" in told
    assert "(default: table)" in told
    assert load(CoordinatorSettings, [*COORDINATOR, "--engine=bundled"]).engine is bundled


def test_it_can_not_be_chosen_once_it_is_gone() -> None:
    assert "bundled" not in ENGINES.names()
    with pytest.raises(ConfigError, match="choose one of table"):
        load(CoordinatorSettings, [*COORDINATOR, "--engine=bundled"])


@pytest.mark.parametrize("asked", [True, False])
def test_a_coordinator_takes_it_from_a_request_or_its_settings(
    bundled: Bundled, asked: bool
) -> None:
    queries = np.zeros((QUERIES, 2), np.float32)
    offer = common_pb2.Offer(
        classes=CLASSES,
        query_dtype=tensors.dtype_code(queries.dtype),
        query_shape=[2],
        ballots=[ONE_HOT.code],
    )
    can = agent_pb2.Capabilities(offers=[offer])
    default = TABLE if asked else bundled
    defaults = Defaults(("p", "q"), "dealer", default, 0.5, 0.0, 1e-3, 0.8, 1, 60, 1, 1_000)
    request = Asked(classes=CLASSES, engine=bundled if asked else None).message()
    spec = make_spec(request, queries, dict.fromkeys(NAMES, can), defaults, 0.001)
    assert isinstance(spec.engine, BundledArgmax)
    # The totals of a verified round are found first, with items of another kind.
    assert spec.message.verified
    names = [item.wire_name for item in spec.plan()]
    assert names == [*["bit_conversion"] * (len(names) - 2), "bundle", "bundle"]


def test_it_can_be_measured(bundled: Bundled) -> None:
    network = cases.conditions([0.0], [0.0])
    (case,) = cases.grid([bundled], [2], [QUERIES], [CLASSES], network, 25)
    assert (case.bits, case.crypten, case.family) == (25, False, "bundled")
    assert str(case).startswith("bundled as planned, 2 parties, 30 x 7")


def test_a_copy_is_the_kind_itself(bundled: Bundled) -> None:
    for kind in ENGINES:
        assert copy.deepcopy(kind) is copy.copy(kind) is pickle.loads(pickle.dumps(kind)) is kind
    assert bundled in ENGINES


def test_two_engines_do_not_share_a_name_or_a_code(bundled: Bundled) -> None:
    with pytest.raises(ValueError, match="is taken"):
        ENGINES.register(Bundled())
    with pytest.raises(ValueError, match="is taken"):
        ENGINES.register(Table())
    assert ENGINES.by_name("bundled") is ENGINES.by_code(bundled.code) is bundled
