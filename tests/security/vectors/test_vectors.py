"""Known answers on file: the code gives them, a second implementation gives them, and a change of
either is noticed.

What is here must not change by accident: parties, agents and dealers of two versions, or of two
implementations, would compute different things. Who means to change it writes the files anew with
`python -m tests.security.vectors`, and reads what changed.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from aggregator.party import servicer
from mpc_vote.argmax import engine as argmax_engine
from mpc_vote.argmax.crypten.triples import TripleKind, Triples
from mpc_vote.argmax.table import comparison, engine, level, marks
from mpc_vote.argmax.table.comparison import Comparisons
from mpc_vote.argmax.table.level import LevelTables
from mpc_vote.mpc import channel, cut_and_choose, preprocessing, ring, sharing
from mpc_vote.mpc.channel import Channel
from mpc_vote.mpc.cut_and_choose import Drawn, Grant, Session, choose, commit
from mpc_vote.mpc.in_process import run_committee
from mpc_vote.mpc.preprocessing import PreprocessingPlan, Run
from mpc_vote.mpc.prg import SeedStream
from mpc_vote.privacy import coins as coin_laws
from mpc_vote.verified import encoding, summation
from mpc_vote.verified.bit_conversion import BitConversion
from mpc_vote.voting.spec import Spec
from tests.security.vectors import shares
from tests.security.vectors.independent import rules as independent
from tests.security.vectors.independent import sessions, streams
from tests.security.vectors.parties import Heard
from tests.security.vectors.topic import FOLDER, read, readable
from tests.security.vectors.topics import TOPICS

DOCS = Path(__file__).parents[3] / "docs" / "protocol.md"
NONE = "(nothing)"


def differences(made: Any, on_file: Any, where: str = "") -> list[str]:
    """The fields that are not the same."""
    if isinstance(made, dict) and isinstance(on_file, dict):
        keys = made.keys() | on_file.keys()
        pairs = [
            (f"{where}.{key}", made.get(key, NONE), on_file.get(key, NONE)) for key in sorted(keys)
        ]
    elif isinstance(made, list) and isinstance(on_file, list):
        both = enumerate(itertools.zip_longest(made, on_file, fillvalue=NONE))
        pairs = [(f"{where}[{place}]", one, other) for place, (one, other) in both]
    else:
        return [] if made == on_file else [f"{where}: {made!r}, on file {on_file!r}"]
    return [line for name, one, other in pairs for line in differences(one, other, name)]


@pytest.mark.parametrize("name", TOPICS)
def test_the_code_gives_what_is_on_file(name: str) -> None:
    made = TOPICS[name].made()
    assert not differences(made, read(name))
    # And to the letter: where 1 is on file, neither 1.0 nor true is given.
    assert (FOLDER / f"{name}.json").read_text() == readable(made) + "\n"


@pytest.mark.parametrize("name", TOPICS)
def test_what_is_refused_is_what_must_be(name: str) -> None:
    """So that a case which is meant to be good, or bad, can't be written down as the other."""
    meant = [(case.name, case.refused) for case in TOPICS[name].cases]
    assert [(case["name"], case.get("refused", "")) for case in read(name)["cases"]] == meant


def test_no_file_is_left_out() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == TOPICS.keys()


@pytest.mark.parametrize("name", TOPICS)
def test_a_file_says_what_it_shows_and_where_that_is_documented(name: str) -> None:
    content = read(name)
    assert list(content) == ["what", "cases"]
    docs = DOCS.read_text()
    cited = re.search(r"docs/protocol\.md, ([^.;]*)", content["what"])
    assert cited is not None
    section, _, paragraph = cited.group(1).partition(": ")
    for heading in section.split(" and ") if not paragraph else [section]:
        assert f"\n## {heading}\n" in docs
    if paragraph:
        assert f"\n**{paragraph}** (`" in docs and f"`{name}.json`" in docs
    assert {case.rule for case in TOPICS[name].cases} == TOPICS[name].rules.keys()


# Of a spec that is valid it makes the bytes, and what follows from it without the noise.
PARTLY = {"spec"}
INDEPENDENT = [
    pytest.param(name, case, id=f"{name}: {case['rule']}, {case['name']}")
    for name, rules in independent.RULES.items()
    for case in read(name)["cases"]
    if case["rule"] in rules and not (name in PARTLY and "refused" in case)
]


@pytest.mark.parametrize(("name", "case"), INDEPENDENT)
def test_a_second_implementation_gives_what_is_on_file(name: str, case: dict[str, Any]) -> None:
    rule = independent.RULES[name][case["rule"]]
    if "refused" in case:
        with pytest.raises(streams.Refused):
            rule(case["given"])
        return
    found, on_file = rule(case["given"]), case["gives"]
    if name in PARTLY:
        on_file = {field: on_file[field] for field in found}
    assert not differences(found, on_file)


def test_the_second_implementation_has_all_rules() -> None:
    rules = {(name, rule) for name, topic in TOPICS.items() for rule in topic.rules}
    again = {(name, rule) for name, topic in independent.RULES.items() for rule in topic}
    assert rules == again


@pytest.mark.parametrize(
    "path", sorted((FOLDER / "independent").glob("*.py")), ids=lambda p: p.stem
)
def test_the_second_implementation_is_independent(path: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None and node.level == 0
            imported.add(node.module)
    own_package = "tests.security.vectors.independent."
    own = {name for name in imported if f"{name}.".startswith(own_package)}
    packages = {name.partition(".")[0] for name in imported - own}
    assert packages <= {"cryptography", *sys.stdlib_module_names}


KEYS = st.lists(st.binary(min_size=32, max_size=32), min_size=2, max_size=4)
BOOLEANS = st.booleans()
ITEMS = st.one_of(
    st.tuples(st.just("triples"), st.integers(1, 3), st.integers(1, 20)),
    st.tuples(
        *(st.just("level"), st.integers(1, 3), st.integers(2, 5), st.integers(13, 31)),
        *(st.integers(1, 64), BOOLEANS, BOOLEANS),
    ),
    st.tuples(st.just("rotation"), st.integers(1, 4), st.integers(2, 9)),
    st.tuples(
        *(st.just("bit_conversion"), st.integers(0, 4), st.integers(1, 5)),
        *(st.integers(1, 20), st.integers(13, 64)),
    ),
)


class TestBeyondTheFiles:
    """Where both implementations agree on any input, the files are examples of a rule."""

    @given(ITEMS, KEYS, st.integers(0, 2**64 - 1))
    def test_on_items(self, item: tuple[Any, ...], keys: list[bytes], index: int) -> None:
        case = {"item": list(item), "keys": [key.hex() for key in keys], "index": index}
        rules = (
            TOPICS["corrections"].rules["correct"],
            independent.RULES["corrections"]["correct"],
        )
        one, other = (rule(case) for rule in rules)
        assert not differences(one, other)

    @given(st.lists(st.integers(0, 2**64 - 1), max_size=30), st.integers(1, 64))
    def test_on_packing(self, values: list[int], bits: int) -> None:
        case = {"values": values, "bits": bits}
        packed = independent.RULES["packing"]["pack"](case)
        assert not differences(TOPICS["packing"].rules["pack"](case), packed)
        low = [value % (1 << bits) for value in values]
        for rule, data in (("unpack", packed["packed"]), ("unpack_planes", packed["planes"])):
            case = {"data": data, "bits": bits, "count": len(values)}
            for rules in (TOPICS["packing"].rules, independent.RULES["packing"]):
                assert rules[rule](case) == {"values": low}

    def test_on_a_draw(self) -> None:
        """What parties really say to each other is what the rules say that they should."""
        session = Session("round-1", ("alpha", "beta", "gamma"), _plan(), copies=4)
        seeds = [session.draw_seeds() for _ in session.parties]
        hashes = tuple(session.seed_hashes(rank, own) for rank, own in enumerate(seeds))
        transcript = session.transcript(hashes)
        keys = [cut_and_choose.stream_keys(transcript, own, copy) for copy, own in _by_copy(seeds)]
        digests = tuple(commit(item, keys, index) for index, item in enumerate(session.plan))

        def program(openings: Channel, _: Any) -> tuple[Drawn, list[list[bytes]]]:
            heard = Heard(openings)
            grant = Grant(session, openings.rank, seeds[openings.rank], hashes, digests)
            return choose(grant, heard), heard.exchanges

        for drawn, (first, coins, echoed, opened, *_) in run_committee(3, program):
            told = sessions.draw(
                {
                    "session": session.id,
                    "parties": list(session.parties),
                    "runs": [[1, ["triples", 1, 2], ["level", 1, 3, 14, 2, False, True]]],
                    "copies": session.copies,
                    "seeds": [[seed.hex() for seed in own] for own in seeds],
                    "coins": [coin.hex() for coin in coins],
                }
            )
            assert [one.hex() for one in first] == [told["dealt"] + h for h in told["coin_hashes"]]
            assert {echo.hex() for echo in echoed} == {told["lot"]}
            assert drawn.copy == told["copy"] and drawn.context.hex() == told["context"]
            assert drawn.key.hex() in told["keys"][drawn.copy]
            others = [copy for copy in range(session.copies) if copy != drawn.copy]
            assert list(opened) == [b"".join(own[copy] for copy in others) for own in seeds]


def _plan() -> PreprocessingPlan:
    return PreprocessingPlan(
        (Run((Triples(TripleKind.PRODUCT, 2), LevelTables(1, 3, 14, 2, False, True)), times=1),)
    )


def _by_copy(seeds: Sequence[Sequence[bytes]]) -> Any:
    return enumerate(zip(*seeds, strict=True))


# Changes of the code that nobody would see otherwise, as all roles make them alike.


def _counter(self: SeedStream, seed: bytes, stream: int = 0) -> None:
    """The number of the stream in the lower half."""
    block = bytes(8) + stream.to_bytes(8, "big")
    self._encryptor = Cipher(algorithms.AES(seed), modes.CTR(block)).encryptor()


def _purposes(purpose: str, *parts: bytes) -> bytes:
    """Another project's name in the domain."""
    return sessions.hashed(f"{purpose} ", *parts)


def _without_lengths(purpose: str, *parts: bytes) -> bytes:
    return hashlib.sha256(b"mpc-vote " + purpose.encode() + b"".join(parts)).digest()


def _free(self: LevelTables, stream: SeedStream) -> Any:
    """Masks of wins drawn before masks of totals."""
    s = comparison.draw(stream, np.dtype("u1"), (self.group, self.vectors))
    r = comparison.draw(stream, ring.dtype_for(self.bits), (self.group, self.vectors))
    q = None
    if self.labelled:
        q = comparison.draw(stream, ring.dtype_for(self.label_bits), (self.group, self.vectors))
    return r, s, q


_differences = Comparisons.differences

MUTATIONS: dict[str, tuple[str, Any, str, Any]] = {
    "the stream's number in the other half": ("prg", SeedStream, "__init__", _counter),
    "seeds joined in another order": (
        *("corrections", level, "joint_seed"),
        lambda seeds: streams.joint_seed(seeds[::-1]),
    ),
    "another domain": ("dealing", cut_and_choose, "_hash", _purposes),
    "parts without their lengths": ("dealing", cut_and_choose, "_hash", _without_lengths),
    "numbers of another byte order": (
        *("dealing", cut_and_choose, "_number"),
        lambda number: number.to_bytes(8, "little"),
    ),
    "commitments without the item's number": (
        *("dealing", cut_and_choose, "commitment"),
        lambda correction, key, index: sessions.commitment(correction, key, 0),
    ),
    "a plan without the fields of its items": (
        *("dealing", preprocessing, "_described"),
        lambda item: [type(item).__name__],
    ),
    "fields of an item in another order": (
        *("dealing", preprocessing, "_described"),
        lambda item: [type(item).__name__, *reversed(dataclasses.astuple(item))],
    ),
    "planes of the highest bit first": (
        *("packing", ring, "pack_planes"),
        lambda values, bits: streams.pack_planes(values.tolist(), bits)[::-1],
    ),
    "shares of whole words": (
        *("sharing", sharing, "expand"),
        lambda stream, count, bits: stream.words(count),
    ),
    "zero shares of the other sign": (
        *("zero_sharing", shares, "zero_share"),
        lambda of, count: -channel.zero_share(of, count),
    ),
    "masks drawn in another order": ("corrections", LevelTables, "_free", _free),
    "pairs in another order": (
        *("corrections", Comparisons, "differences"),
        lambda self, values: _differences(self, values)[::-1],
    ),
    "numbers that are taken modulo a prime": (
        *("corrections", marks, "residues"),
        lambda stream, modulus, count: np.frombuffer(stream.take(count), np.uint8) % modulus,
    ),
    "winners marked without the parties' units": (
        *("parties", marks, "units"),
        lambda stream, prime, count: np.ones(count, np.uint8),
    ),
    "winners marked without a sharing of zero": (
        *("parties", marks, "zero_residues"),
        lambda of, prime, count: np.zeros(count, np.uint8),
    ),
    "masks of pointers cut otherwise": (
        *("corrections", BitConversion, "places"),
        property(lambda self: 2 << self.pointer_bits),
    ),
    "constants of another party": (
        *("parties", engine, "adds_constants"),
        lambda openings: openings.rank == 0,
    ),
    "labels that are not re-randomised": (
        *("parties", engine.TableArgmax, "run"),
        lambda self, *run: engine.TableArgmax(self.ring_bits, self.groups).winners(*run),
    ),
    "coins of other weights": (
        "coins",
        coin_laws,
        "_lighter",
        lambda heaviest: [1][: heaviest - 1],
    ),
    "coins that are not weighed": (
        *("parties", summation, "_noise"),
        lambda law, tossed, constants: tossed.reshape(-1, law.coins).sum(
            axis=1, dtype=tossed.dtype
        ),
    ),
    "pointers in the order of classes": (
        *("encoding", encoding, "_pointers"),
        lambda layout, votes: np.zeros((len(votes), layout.bits), np.uint8),
    ),
    "agents as they come": ("contexts", servicer, "sorted", lambda held, key: list(held)),
    "labels of another byte order": (
        "contexts",
        argmax_engine,
        "LABEL",
        argmax_engine.LABEL.newbyteorder(">"),
    ),
    "residuals to another party": ("spec", Spec, "explicit_rank", lambda self, agent: 0),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_change_of_the_code_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, where, attribute, instead = MUTATIONS[name]
    assert not differences(TOPICS[topic].made(), read(topic))
    monkeypatch.setattr(where, attribute, instead, raising=attribute != "sorted")
    # Laws are kept by sigma: neither the old ones here nor the changed ones later.
    coin_laws.law_for.cache_clear()
    try:
        assert differences(TOPICS[topic].made(), read(topic))
    finally:
        coin_laws.law_for.cache_clear()


@pytest.mark.parametrize("name", TOPICS)
def test_a_change_of_a_file_is_found(name: str) -> None:
    """In any field of any case."""
    made = TOPICS[name].made()["cases"]
    for place, case in enumerate(read(name)["cases"]):
        for part in {"given", "gives"} & case.keys():
            for field in case[part]:
                changed = {**case, part: {**case[part], field: "another"}}
                assert differences(made[place], changed), (case["name"], field)
