"""What a client sends: rows that the wire can carry, as messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.proto.mpcvote.v1 import label_pb2, model_pb2
from mpc_vote.tasks import Task
from mpc_vote.transport import tensors


def rows_of(given: npt.ArrayLike, field: str = "queries") -> npt.NDArray[Any]:
    """Rows that the wire can carry; refused here, since inside a stream gRPC hides the reason."""
    array = np.asarray(given)
    if given is None or array.size == 0:
        raise VoteError(ErrorKind.QUERIES_EMPTY, field=field)
    tensors.dtype_code(array.dtype)
    if array.ndim < 2:
        raise VoteError(
            ErrorKind.QUERIES_SHAPE, field=field, got=array.shape[1:], want="(features, ...)"
        )
    tensors.rows_per_chunk(array[:1].nbytes, field)
    tensors.check_finite(array, field)
    return array


def digest_of(task: Task | None) -> bytes:
    return b"" if task is None else task.digest


def label_requests(
    queries: npt.NDArray[Any], plan: label_pb2.LabelPlan
) -> Iterator[label_pb2.RequestLabelsRequest]:
    plan.queries = len(queries)
    yield label_pb2.RequestLabelsRequest(plan=plan)
    for tensor in tensors.chunks(queries):
        yield label_pb2.RequestLabelsRequest(queries=tensor)


def train_requests(
    first: model_pb2.TrainRequest, unlabelled: npt.NDArray[Any] | None
) -> Iterator[model_pb2.TrainRequest]:
    yield first
    if unlabelled is not None:
        for tensor in tensors.chunks(unlabelled):
            yield model_pb2.TrainRequest(unlabelled=tensor)
