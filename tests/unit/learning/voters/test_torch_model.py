"""Exported programs vote; files that could hold code are refused before anything is loaded."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mpc_vote.learning.voters import ModelInputs, Voter, VoterOptions, make_voter
from mpc_vote.learning.voters.torch_archive import load
from mpc_vote.tasks import Task
from mpc_vote.voting.ballots import ONE_HOT
from tests.unit.learning.voters.tasks import PICTURES, VECTORS

ROWS = np.array([[-2, 0, 0], [0.1, 0, 0], [2, 0, 0]], np.float32)


class Linear(torch.nn.Module):
    """Scores of minus, zero and plus."""

    ones: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)
        with torch.no_grad():
            self.layer.weight.copy_(torch.tensor([[-1.0, 0, 0], [0, 0, 0], [1, 0, 0]]))
            self.layer.bias.copy_(torch.tensor([0.0, 1, 0]))
        self.ones: torch.Tensor
        self.register_buffer("ones", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x * self.ones).softmax(dim=1)
        return scores


class Bright(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.flatten(1).mean(dim=1) > 0.5).long()


def exported(path: Path, model: torch.nn.Module, example: torch.Tensor, vary: bool = True) -> Path:
    shapes = ({0: torch.export.Dim("rows", min=1, max=1024)},) if vary else None
    program = torch.export.export(model.eval(), (example,), dynamic_shapes=shapes)
    torch.export.save(program, path)
    return path


def voter(path: Path, task: Task = VECTORS, inputs: str = "features") -> Voter:
    options = VoterOptions(task=task, model=str(path), inputs=ModelInputs(inputs))
    return make_voter("torch", None, options)


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("torch") / "linear.pt2"
    return exported(path, Linear(), torch.zeros(4, 3))


def test_the_highest_score_is_voted_for(linear: Path) -> None:
    made = voter(linear)
    assert made.kinds == (ONE_HOT,)
    assert made.vote(np.tile(ROWS, (100, 1)), ONE_HOT).tolist() == [0, 1, 2] * 100


def test_a_program_of_fixed_batches_gets_them_filled_up(tmp_path: Path) -> None:
    path = exported(tmp_path / "m.pt2", Linear(), torch.zeros(2, 3), vary=False)
    assert voter(path).vote(ROWS, ONE_HOT).tolist() == [0, 1, 2]


def test_pictures_come_as_parts_of_one(tmp_path: Path) -> None:
    path = exported(tmp_path / "m.pt2", Bright(), torch.zeros(2, 3, 4, 5))
    pictures = np.stack([np.full((3, 4, 5), value, np.uint8) for value in (10, 200)])
    assert voter(path, PICTURES, "raw").vote(pictures, ONE_HOT).tolist() == [0, 1]


def test_a_program_of_something_else_is_refused(tmp_path: Path) -> None:
    path = exported(tmp_path / "m.pt2", Bright(), torch.zeros(2, 7))
    with pytest.raises(ValueError, match=r"float32 \(any, 7\), and a row to give has the shape"):
        voter(path)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('code of the file was run')",)


def _rewritten(
    source: Path, path: Path, change: Callable[[str, bytes], bytes], more: dict[str, bytes]
) -> Path:
    """The archive with records changed or added."""
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(path, "w") as after:
        root = before.namelist()[0].partition("/")[0]
        for name in before.namelist():
            after.writestr(name, change(name.removeprefix(f"{root}/"), before.read(name)))
        for name, content in more.items():
            after.writestr(f"{root}/{name}", content)
    return path


def _saved(thing: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def _pickled_weight(name: str, content: bytes) -> bytes:
    if name.endswith("model_weights_config.json"):
        config = json.loads(content)
        config["config"]["layer.weight"]["use_pickle"] = True
        return json.dumps(config).encode()
    return _saved(Bomb()) if name == "data/weights/weight_0" else content


def _opaque_constant(name: str, content: bytes) -> bytes:
    if not name.endswith("model_constants_config.json"):
        return content
    record = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False}
    return json.dumps({"config": {"x": {**record, "tensor_meta": None}}}).encode()


def _example_inputs(name: str, content: bytes) -> bytes:
    return _saved(Bomb()) if name == "data/sample_inputs/model.pt" else content


def _size(formula: str) -> Callable[[str, bytes], bytes]:
    def change(name: str, content: bytes) -> bytes:
        if name != "models/model.json":
            return content
        symbol = "Symbol('s77', positive=True, integer=True)"
        text = content.decode()
        assert symbol in text
        return text.replace(symbol, formula, 1).encode()

    return change


def _target(name: str, content: bytes) -> bytes:
    if name != "models/model.json":
        return content
    return content.replace(b'"torch.ops.aten.mul.Tensor"', b'"torch.hub.load"', 1)


def _guard(name: str, content: bytes) -> bytes:
    if name != "models/model.json":
        return content
    return json.dumps({**json.loads(content), "guards_code": ["exit()"]}).encode()


def _name(name: str, content: bytes) -> bytes:
    return content.replace(b'"x"', b'"x, y=exit()"') if name == "models/model.json" else content


def _hidden_size(name: str, content: bytes) -> bytes:
    """A tensor that is called like the notes on a graph's origin, with a size that is code."""
    if name != "models/model.json":
        return content
    graph = json.loads(content.replace(b'"softmax"', b'"metadata"'))
    values = graph["graph_module"]["graph"]["tensor_values"]
    code = "exec('raise SystemExit(1)')"
    values["metadata"]["sizes"][0] = {"as_expr": {"expr_str": code, "hint": None}}
    return json.dumps(graph).encode()


def _structure(**change: Any) -> Callable[[str, bytes], bytes]:
    """Another container for the inputs."""

    def changed(name: str, content: bytes) -> bytes:
        if name != "models/model.json":
            return content
        graph = json.loads(content)
        signature = graph["graph_module"]["module_call_graph"][0]["signature"]
        version, tree = json.loads(signature["in_spec"])
        tree["children_spec"][1].update(change)
        signature["in_spec"] = json.dumps([version, tree])
        return json.dumps(graph).encode()

    return changed


_LIBRARY = json.dumps({"__enum__": True, "fqn": "ctypes:cdll", "name": "libc.so.6"})
_FACTORY = {
    "default_factory_module": "this",
    "default_factory_name": "s",
    "dict_context": [],
}


def _same(name: str, content: bytes) -> bytes:
    return content


@pytest.mark.parametrize(
    ("change", "more", "why"),
    [
        (_pickled_weight, {}, "'layer.weight' as a pickle"),
        (_opaque_constant, {"data/constants/opaque_obj_0": pickle.dumps(Bomb())}, "opaque_obj_0"),
        (_opaque_constant, {}, "not a tensor"),
        (_example_inputs, {}, "can't load the program"),
        (
            _size("Pow(Integer(9), Pow(Integer(9), Integer(9)))"),
            {},
            "which is no formula that we know",
        ),
        (_size("Pow(Symbol('s77'), Integer(99))"), {}, "which is no formula that we know"),
        (_size("9**9"), {}, "which is no formula that we know"),
        (_size("1 << 9"), {}, "which is no formula that we know"),
        (_size("'s77' * 9"), {}, "which is no formula that we know"),
        (_size("exec(chr(49))"), {}, "is no formula that we know"),
        (_size("s77.__class__"), {}, "is no formula that we know"),
        (_hidden_size, {}, "is no formula that we know"),
        (_target, {}, "calls 'torch.hub.load'"),
        (_guard, {}, "guards, which are code"),
        (_name, {}, "'x, y=exit\\(\\)', which may be code"),
        (_structure(context=_LIBRARY), {}, "more than tuples, lists and dicts"),
        (_structure(context=f"[{_LIBRARY}]"), {}, "more than tuples, lists and dicts"),
        (
            _structure(type="collections.defaultdict", context=_FACTORY),
            {},
            "more than tuples, lists and dicts",
        ),
        (_same, {"data/aotinductor/model/a.so": b"code"}, "aotinductor"),
        (_same, {"data/weights/model.pt": _saved(Bomb())}, "which no plain model has"),
        (_same, {"models/other.json": b"{}"}, "which no plain model has"),
    ],
)
def test_archives_with_room_for_code_are_refused(
    change: Any, more: dict[str, bytes], why: str, linear: Path, tmp_path: Path
) -> None:
    path = _rewritten(linear, tmp_path / "m.pt2", change, more)
    with pytest.raises(ValueError, match=why):
        load(path)


def test_an_archive_that_is_only_packed_anew_is_loaded(linear: Path, tmp_path: Path) -> None:
    """So that the refusals above are of what was changed."""
    assert load(_rewritten(linear, tmp_path / "m.pt2", _same, {})) is not None


def _torchscript() -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(Linear().eval(), torch.zeros(1, 3)), buffer)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        lambda: _saved(Bomb()),
        lambda: _saved(Linear().state_dict()),
        lambda: pickle.dumps(Bomb()),
        _torchscript,
        lambda: b"",
    ],
    ids=["module", "weights", "pickle", "torchscript", "empty"],
)
def test_pickles_and_torchscript_are_not_loaded(
    content: Callable[[], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(content())
    with pytest.raises(ValueError, match="pickled modules and TorchScript are not loaded"):
        load(path)


def test_a_packed_archive_is_refused(linear: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    with zipfile.ZipFile(linear) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as to:
        for name in source.namelist():
            to.writestr(name, source.read(name) + b" " * 100_000 * name.endswith("model.json"))
    with pytest.raises(ValueError, match="unpacked: save it without compression"):
        voter(path)


def test_what_torch_exports_as_onnx_votes_as_the_tutorial_says(tmp_path: Path) -> None:
    network, path = torch.nn.Linear(3, 3), tmp_path / "m.onnx"
    torch.onnx.export(network, (torch.zeros(2, 3),), path, dynamo=False)
    voter = make_voter("onnx", None, VoterOptions(task=VECTORS, model=str(path)))
    rows = np.eye(3, dtype=np.float32)
    with torch.no_grad():
        best = network(torch.from_numpy(rows)).argmax(dim=1)
    assert voter.vote(rows, ONE_HOT).tolist() == best.tolist()
