"""What an exported program of torch may hold before it is loaded: numbers and a graph, no code.

`torch.export.load` by itself is not safe: it unpickles weights and constants that a file marks as
pickled, falls back to pickle for example inputs, loads compiled libraries, evaluates symbolic sizes
and guards as Python, writes names of the graph into code, calls whatever function below `torch` a
graph names, and imports and indexes whatever object the structure of inputs and outputs names.
`torch.export.save` needs none of that for a plain model. So the archive is read first, by torch's
own reader and from the same bytes: records, flags, sizes, names and functions beyond what a plain
model has are refused. What remains of pickle, the example inputs, is read by torch's restricted
unpickler, without a fallback. These are the ways that we know of; torch itself promises no safety,
so prefer ONNX for files from others.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mpc_vote.learning.voters.files import check_packed

_FORCE, _FORCE_NOT = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_MAX_BYTES = 4 << 30
_RECORDS = re.compile(
    r"archive_format|archive_version|byteorder|\.data/\w+|models/model\.json"
    r"|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|data/sample_inputs/model\.pt"
)
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_GRAPH = "models/model.json"
_TARGETS = re.compile(
    r"torch\.ops\.aten\.\w+\.\w+|_operator\.(add|sub|mul|floordiv|mod|neg|pow|truediv|eq|ne|lt|le"
    r"|gt|ge|and_|or_|getitem)|torch\.sym_(float|int|max|min|not|sqrt)|math\.(ceil|floor|trunc)"
)
_NAMES = re.compile(
    r"[suz]\d+|Symbol|Integer|Add|Mul|Pow|Max|Min|Mod|PythonMod|FloorDiv|CleanDiv|floor|ceiling"
    r"|Eq|Ne|Lt|Le|Gt|Ge|And|Or|Not|true|false|True|False|positive|nonnegative|integer"
)
_DATA = ("as_string", "as_strings", "expr_str", "in_spec", "out_spec", "torch_version")
_STRUCTURES = ("in_spec", "out_spec")
# What has notes on its origin; elsewhere `metadata` is a name like any other, such as a tensor's.
_NOTED = ("graph_module", "nodes")
_CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict")
_IDENTIFIER = re.compile(r"[\w.]*")
_WORDS = re.compile(r"[^\W\d]\w*")
# Functions of symbols and numbers, as torch writes a size; operators could make one of any length.
_PLAIN = re.compile(r"[\w\s(),'=-]*")
_POWER = re.compile(r"Pow\(Symbol\('\w+'(?:, \w+=True)*\), Integer\(-?\d\)\)")


def load(path: Path) -> Any:
    """The exported program in a file; a `ValueError` says what keeps it from being loaded."""
    import torch
    from torch.export.pt2_archive._package import PT2ArchiveReader

    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"{path}: it takes over {_MAX_BYTES:,} bytes")
    content = path.read_bytes()
    try:
        with PT2ArchiveReader(io.BytesIO(content)) as reader:
            names = reader.get_file_names()
    except Exception as error:  # torch has no one error for what it did not write
        raise _unreadable(path) from error
    if _GRAPH not in names:
        raise _unreadable(path)
    check_packed(path)
    try:
        with PT2ArchiveReader(io.BytesIO(content)) as reader:
            _check(names, {name: reader.read_string(name) for name in (*_CONFIGS, _GRAPH)})
    except _Refused as error:
        raise ValueError(f"{path}: {error}") from error
    except Exception as error:
        raise _unreadable(path) from error
    try:
        with _restricted_pickle():
            return torch.export.load(io.BytesIO(content))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: torch can't load the program: {why}") from error


class _Refused(Exception):
    """What a plain model does not hold."""


def _unreadable(path: Path) -> ValueError:
    return ValueError(
        f"{path}: it is no exported program: save the model with torch.export.save, as "
        ".pt2; pickled modules and TorchScript are not loaded"
    )


@contextlib.contextmanager
def _restricted_pickle() -> Iterator[None]:
    """Makes torch's own loader refuse all but plain tensors, also where it is told otherwise."""
    before = {name: os.environ.pop(name, None) for name in (_FORCE, _FORCE_NOT)}
    os.environ[_FORCE] = "1"
    try:
        yield
    finally:
        del os.environ[_FORCE]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _check(names: list[str], texts: dict[str, str]) -> None:
    for name in names:
        if not _RECORDS.fullmatch(name):
            raise _Refused(f"it holds {name!r}, which no plain model has")
    for config in _CONFIGS:
        for key, record in json.loads(texts[config])["config"].items():
            if record["use_pickle"] is not False:
                raise _Refused(f"it holds {key!r} as a pickle, which may be any code")
            # Other names stand for objects with code of their own.
            if not re.fullmatch(r"(weight|tensor)_\d+", record["path_name"]):
                raise _Refused(f"it holds {key!r}, which is not a tensor")
    graph = json.loads(texts[_GRAPH])
    if graph.get("guards_code"):
        raise _Refused("it holds guards, which are code: export it with fewer conditions on sizes")
    for key, value in _texts(graph):
        if key == "target" and not _TARGETS.fullmatch(value):
            raise _Refused(f"its graph calls {value!r}, which is no function that we know")
        if key == "expr_str" and not (
            _PLAIN.fullmatch(value)
            and all(map(_NAMES.fullmatch, _WORDS.findall(value)))
            and value.count("Pow") == len(_POWER.findall(value))
        ):
            raise _Refused(f"a size in its graph is {value!r}, which is no formula that we know")
        if key in _STRUCTURES and not _is_plain(json.loads(value)[1]):
            raise _Refused("its inputs or outputs are more than tuples, lists and dicts of tensors")
        if key not in _DATA and not _IDENTIFIER.fullmatch(value):
            raise _Refused(f"its graph has the name {value!r}, which may be code")


def _is_plain(structure: Any) -> bool:
    """Whether a tree of containers is of Python's own; the context of a dict is its keys."""
    if structure["type"] not in _CONTAINERS:
        return False
    context = structure["context"]
    keys = [] if context is None else json.loads(context) or []
    return (
        isinstance(keys, list)
        and all(isinstance(key, str) for key in keys)
        and all(map(_is_plain, structure["children_spec"]))
    )


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """All texts of a JSON document but notes on its origin, each with the key that it is under;
    keys are texts, too."""
    if isinstance(value, dict):
        for name, one in value.items():
            if name != "metadata" or key not in _NOTED:
                yield "", name
                yield from _texts(one, name)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one, key)
    elif isinstance(value, str):
        yield key, value
