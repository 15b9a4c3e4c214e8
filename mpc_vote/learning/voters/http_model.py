"""Votes of a model behind HTTP: a service of the Open Inference Protocol, version 2.

Queries are public, answers are this agent's votes before any noise: so a service on another
machine is asked over TLS, unless the owner allows otherwise. Answers are JSON tensors of a bounded
size; nothing is followed elsewhere. The service sees every query, and that this agent votes on it.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import math
import re
import ssl
import urllib.parse
from collections.abc import Mapping
from typing import Any

import numpy as np

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters import VoterOptions
from mpc_vote.learning.voters.answers import PredictionVoter
from mpc_vote.learning.voters.questions import Question
from mpc_vote.learning.voters.tensor_inputs import Array, Tensor, batch_of, fitting, in_parts

_SECONDS = 60.0
"""For a connection, and for each piece of an answer; an agent waits for all of them till its
round's deadline."""

_PATH = re.compile(r"(/[\w.~%-]+)*/v2/models/[\w.~%-]+(/versions/[\w.~%-]+)?")
_EXAMPLE = "http://localhost:8000/v2/models/NAME"
_MAX_METADATA = 1 << 20
_NUMBER_CHARACTERS = 40
_DTYPES = {
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "UINT8": np.uint8,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "BOOL": np.bool_,
    "BYTES": np.object_,
}


def make(data: Dataset | None, options: VoterOptions) -> PredictionVoter:
    """The voter of the service at `--model`. See `PredictionVoter` for what is accounted.

    Of its outputs, labels are cast where there are such (BYTES or integers, one to a row), else the
    highest of its scores, which are in the order of the task's classes.
    """
    question = Question.of(data, options)
    service = _Service(options)
    metadata = service.metadata()
    tensors = [_tensor(one) for one in _listed(metadata, "inputs")]
    fit, batch = fitting(question, tensors), batch_of(tensors)
    outputs = [_tensor(one) for one in _listed(metadata, "outputs")]
    output = _output(outputs, question)

    def run(arrays: list[Array]) -> list[Any]:
        return [service.infer(tensors, arrays, output, len(question.classes))]

    def predict(given: Any) -> Any:
        found = np.concatenate([part[0] for part in in_parts(run, fit(given), batch)])
        return found.reshape(-1) if output.dtype.kind != "f" and not question.attributes else found

    return PredictionVoter(question, predict)


class _Service:
    """One model of a server."""

    def __init__(self, options: VoterOptions) -> None:
        self._url = urllib.parse.urlsplit(options.model)
        self._host, self._port = _address(self._url)
        if not _PATH.fullmatch(self._url.path):
            raise ValueError(f"--model must be a URL such as {_EXAMPLE}, not {options.model!r}")
        self._context: ssl.SSLContext | None = None
        if self._url.scheme == "https":
            self._context = ssl.create_default_context(cafile=options.ca)
        elif not options.plain_http and not _is_here(self._host):
            raise ValueError(
                f"--model: {self._host} is another machine, and votes would go over the network "
                "for all to read: use https, or allow it with --plain-http"
            )

    def metadata(self) -> Mapping[str, Any]:
        """What the model takes and gives."""
        return self._call("GET", self._url.path, None, _MAX_METADATA)

    def infer(
        self, tensors: list[Tensor], arrays: list[Array], output: Tensor, classes: int
    ) -> Array:
        """The wanted output for some rows."""
        asked = {
            "inputs": [
                {
                    "name": tensor.name,
                    "shape": array.shape,
                    "datatype": _datatype(tensor),
                    "data": _data(array),
                }
                for tensor, array in zip(tensors, arrays, strict=True)
            ],
            "outputs": [{"name": output.name}],
        }
        rows = len(arrays[0])
        room = _MAX_METADATA + rows * classes * _NUMBER_CHARACTERS
        answer = self._call("POST", f"{self._url.path}/infer", asked, room)
        for one in _listed(answer, "outputs"):
            if one.get("name") == output.name:
                return _array(one, rows)
        raise ValueError(f"the answer has no output {output.name!r}")

    def _call(self, method: str, path: str, body: Any, room: int) -> Mapping[str, Any]:
        line: http.client.HTTPConnection
        if self._context is None:
            line = http.client.HTTPConnection(self._host, self._port, timeout=_SECONDS)
        else:
            line = http.client.HTTPSConnection(
                self._host, self._port, timeout=_SECONDS, context=self._context
            )
        try:
            text = None if body is None else json.dumps(body, allow_nan=False)
            line.request(method, path, text, {"Content-Type": "application/json"})
            response = line.getresponse()
            content = response.read(room + 1)
        except (OSError, http.client.HTTPException) as error:
            raise ValueError(f"{self._url.netloc} can't be asked: {error}") from error
        finally:
            line.close()
        if response.status != http.HTTPStatus.OK:
            raise ValueError(f"{method} {path} was answered with {response.status}, not 200")
        if len(content) > room:
            raise ValueError(f"{method} {path} was answered with over {room:,} bytes")
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{method} {path} was not answered with JSON") from error
        if not isinstance(answer, dict):
            raise ValueError(f"{method} {path} was answered with no object of JSON")
        return answer


def _address(url: urllib.parse.SplitResult) -> tuple[str, int]:
    try:
        port = url.port
    except ValueError:
        port = None
    if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query:
        raise ValueError(f"--model must be a URL such as {_EXAMPLE}")
    return url.hostname, port or (443 if url.scheme == "https" else 80)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listed(answer: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = answer.get(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found) or not found:
        raise ValueError(f"the model's server says nothing of its {key}")
    return found


def _tensor(one: Mapping[str, Any]) -> Tensor:
    name, datatype, shape = one.get("name"), one.get("datatype"), one.get("shape")
    if (
        not isinstance(name, str)
        or datatype not in _DTYPES
        or not isinstance(shape, list)
        or not all(type(side) is int for side in shape)
    ):
        raise ValueError(f"the model's server describes a tensor that is unknown here: {one}")
    sides = tuple(side if side > 0 else None for side in shape)
    return Tensor(name, np.dtype(_DTYPES[datatype]), sides)


def _data(array: Array) -> list[Any]:
    """As JSON has it, with null for a number that is missing: there is no NaN."""
    numbers: list[Any] = array.reshape(-1).tolist()
    if array.dtype.kind == "f":
        return [None if math.isnan(number) else number for number in numbers]
    return numbers


def _datatype(tensor: Tensor) -> str:
    return next(name for name, dtype in _DTYPES.items() if np.dtype(dtype) == tensor.dtype)


def _output(outputs: list[Tensor], question: Question) -> Tensor:
    if not question.attributes:
        for one in outputs:
            if one.dtype.kind in "iuO" and one.shape[1:] in ((), (1,)):
                return one
    for one in outputs:
        if one.dtype.kind == "f" and len(one.shape) == 2:
            if one.shape[1] not in (None, len(question.classes)):
                break
            return one
    shown = ", ".join(map(str, outputs))
    raise ValueError(
        f"the model has no output with labels or {len(question.classes)} scores, but {shown}"
    )


def _array(one: Mapping[str, Any], rows: int) -> Array:
    """A tensor of an answer, whose data may be nested or flat."""
    shape, datatype = _tensor(one).shape, one.get("datatype")
    try:
        given = np.array(one.get("data"))
        found: Array = given.astype(_DTYPES[str(datatype)])
        if found.dtype.kind in "iub" and not (
            given.dtype.kind in ("b" if found.dtype.kind == "b" else "iu")
            and np.array_equal(found, given)
        ):
            raise ValueError("its data are not of its type")  # 0.9 is no label
        return found.reshape(tuple(side or 0 for side in shape))
    except (ValueError, TypeError, OverflowError) as error:
        says = f"{datatype} {shape}"
        raise ValueError(
            f"the output {one.get('name')!r} is not of the shape or type that it says: {says}"
        ) from error
