"""CrypTen's own switch, `cfg.functions.max_method = "table"`, in plain CrypTen processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpc_vote.argmax import provider
from mpc_vote.argmax.one_hot import Rotation
from mpc_vote.mpc.prg import new_seed
from tests.unit.argmax.plain_crypten import outputs

PAGE = Path(__file__).parents[3] / "docs" / "crypten.md"

# Each function with all its arguments, by the table; in a world of one, where that is quick, also
# by CrypTen, for shapes and scales; then what CrypTen builds on them, against plain torch; and what
# is refused. Each party prints it all.
PROGRAM = """
import itertools, json, sys
import torch
from mpc_vote.argmax import register_max_method
from mpc_vote.compat import import_crypten
crypten = import_crypten()
register_max_method()
register_max_method()
crypten.cfg.mpc.provider = sys.argv[2]
crypten.init()
torch.set_num_threads(1)
if crypten.communicator.get().get_rank() == crypten.communicator.get().get_world_size():
    crypten.mpc.provider.TTPServer()
    print("{}")
    sys.exit()
cfg = crypten.cfg
values = torch.tensor(json.loads(sys.argv[1]))
TABLE = {"functions.max_method": "table", "functions.max_bound": 40}
calls, seen, refused = [], {}, []
for whole, name, dim, keepdim, one_hot in itertools.product(
    (True, False), ("argmax", "argmin", "max", "min"), (None, 0, -1), (True, False), (True, False)
):
    x = crypten.cryptensor(values if whole else values / 4, src=0, precision=0 if whole else 16)
    given = dict(dim=dim, keepdim=keepdim, one_hot=one_hot)
    results = {}
    alone = crypten.communicator.get().get_world_size() == 1
    for method in (TABLE, {"functions.max_method": "pairwise"}) if alone else (TABLE,):
        with cfg.temp_override(method):
            got = getattr(x, name)(**given)
        results[method["functions.max_method"]] = [
            [list(one.shape), int(one.encoder._scale), one.get_plain_text().tolist()]
            for one in (got if isinstance(got, tuple) else (got,))
        ]
    calls.append([whole, name, given, results])

cfg.functions.max_method = "table"
cfg.functions.max_bound = 40
x = crypten.cryptensor(values / 4, src=0)
plain = values / 4
seen["softmax"] = (x.softmax(dim=1).get_plain_text() - plain.softmax(dim=1)).abs().max().item()
pictures = (values[0] / 4 - 8).reshape(1, 1, *values.shape[1:])
want = torch.nn.functional.max_pool2d(pictures, 2, padding=1)
got = crypten.cryptensor(pictures, src=0).max_pool2d(2, padding=1)
seen["padded pooling of negative values"] = (got.get_plain_text() - want).abs().max().item()
distinct = torch.randperm(24, generator=torch.Generator().manual_seed(3)).reshape(4, 6) / 4
leaf = crypten.cryptensor(distinct, src=0, requires_grad=True)
leaf.max(dim=1)[0].sum().backward()
other = distinct.clone().requires_grad_()
other.max(dim=1)[0].sum().backward()
seen["gradient"] = (leaf.grad.get_plain_text() - other.grad).abs().max().item()
on = (x.max(dim=1)[0] * x.max(dim=1)[0] + 1).get_plain_text()
seen["arithmetic that goes on"] = (on - plain.max(dim=1)[0] ** 2 - 1).abs().max().item()
scalar = crypten.cryptensor(torch.tensor(3.0), src=0)
seen["a scalar"] = abs(scalar.max().get_plain_text().item() - 3)

def refusal(**settings):
    with cfg.temp_override({key.replace("__", "."): value for key, value in settings.items()}):
        try:
            x.max(dim=1)
        except (ValueError, RuntimeError) as error:
            refused.append(str(error))
refusal(functions__max_bound="null")
refusal(functions__max_bound=8192)
refusal(functions__max_bound=0)
refusal(functions__max_bound="wide")
refusal(functions__max_method="tables")
refusal(mpc__provider="HE")
print(json.dumps([calls, seen, refused]))
crypten.uninit()
"""
REFUSALS = [
    "the range of the values is not stated: set crypten.cfg.functions.max_bound",
    "the bound may be 8191 here",
    "is a positive number, not 0",
    "is a positive number, not 'wide'",
    "Unknown argmax method",
    "CrypTen's provider HE deals no tables: set cfg.mpc.provider to TFP or TTP",
]


def expected(values: Any, name: str, dim: int | None, keepdim: bool, one_hot: bool) -> list[Any]:
    """What plain numpy finds; of equals the first."""
    signed = values if name.endswith("max") else -values
    axes = keepdim and dim is not None
    index = np.argmax(signed, axis=dim, keepdims=axes)
    position: Any = index
    if one_hot:
        position = np.zeros_like(values)
        if dim is None:
            position.reshape(-1)[signed.argmax()] = 1
        else:
            np.put_along_axis(position, np.argmax(signed, axis=dim, keepdims=True), 1, axis=dim)
    best = getattr(values, name.removeprefix("arg"))(axis=dim, keepdims=axes)
    if name.startswith("arg"):
        return [position]
    return [best] if dim is None else [best, position]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("parties", "who"), [(1, "TFP"), (3, "TFP"), (2, "TTP")])
def test_the_switch_serves_whatever_crypten_builds_on_a_maximum(parties: int, who: str) -> None:
    values = np.random.default_rng(6).integers(-9, 10, size=(3, 4, 5))  # with ties
    processes = parties + (who == "TTP")
    said = outputs(PROGRAM, processes, json.dumps(values.tolist()), who, world=parties)
    for line in said[:parties]:
        calls, seen, refused = json.loads(line)
        assert len(calls) == 2 * 4 * 3 * 2 * 2
        for whole, name, given, results in calls:
            wanted = expected(values if whole else values / 4, name, **given)
            kinds = {m: [(shape, scale) for shape, scale, _ in r] for m, r in results.items()}
            assert kinds["table"] == kinds.get("pairwise", kinds["table"])
            assert ("pairwise" in kinds) is (parties == 1)
            for (_, _, got), want in zip(results["table"], wanted, strict=True):
                assert np.array_equal(np.array(got), want), (whole, name, given)
        assert len(seen) == 5
        assert not {what: off for what, off in seen.items() if off > 5e-3}
        assert len(refused) == len(REFUSALS)
        for got, want in zip(refused, REFUSALS, strict=True):
            assert want in got


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_example_of_the_page_prints_one_result_three_times(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text(program)
    done = subprocess.run(
        [sys.executable, tmp_path / "example.py"],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    plain, ours, theirs = (
        [round(float(one), 2) for one in re.findall(r"\d+\.\d+", line)]
        for line in done.stdout.splitlines()
    )
    assert len(plain) == 4 and len(set(plain)) > 1
    assert plain == ours == theirs


class TestThirdParty:
    """What CrypTen's third party does when rank 0 asks it."""

    def test_no_stream_of_a_seed_serves_twice(self) -> None:
        server = SimpleNamespace(table_session=([new_seed(), new_seed()], 0))
        asked = [("rotation", {"rows": 3, "classes": 5})]
        first, second = (provider._correct(server, asked).numpy().tobytes() for _ in range(2))
        seeds, used = server.table_session
        assert used == 2
        item = Rotation(3, 5)
        assert first == item.correct(seeds, 0)
        assert second == item.correct(seeds, 1)
        assert first != second

    @pytest.mark.parametrize(
        "asked", [("rotation", {"rows": 1 << 30, "classes": 5}), ("level_tables", {})]
    )
    def test_what_it_could_not_make_is_refused_and_uses_no_stream(self, asked: Any) -> None:
        server = SimpleNamespace(table_session=([new_seed(), new_seed()], 0))
        with pytest.raises((ValueError, KeyError, TypeError)):
            provider._correct(server, [asked])
        assert server.table_session[1] == 0
