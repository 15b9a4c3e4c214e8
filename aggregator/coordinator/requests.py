"""What a client asks, as it arrives: its plan, and batches whose sizes are bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.proto.mpcvote.v1 import common_pb2, label_pb2
from mpc_vote.transport import tensors
from mpc_vote.voting.limits import MAX_QUERIES, MAX_QUERY_BYTES

_UPLOAD_SECONDS = 300.0
_HANG_UP_SECONDS = 0.1

Queries = npt.NDArray[Any]


@contextlib.asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Ends an upload that takes too long."""
    try:
        async with asyncio.timeout(_UPLOAD_SECONDS):
            yield
    except TimeoutError as error:
        what = "The upload"
        raise VoteError(ErrorKind.DEADLINE, what=what, seconds=_UPLOAD_SECONDS) from error


def check_rows(rows: Queries, dtype: np.dtype[Any], shape: Sequence[int], field: str) -> None:
    """Refuses rows of another dtype or shape."""
    if rows.shape[1:] != tuple(shape):
        raise VoteError(ErrorKind.QUERIES_SHAPE, field=field, got=rows.shape[1:], want=tuple(shape))
    if rows.dtype != dtype:
        raise VoteError(ErrorKind.QUERIES_DTYPE, field=field, got=rows.dtype, want=dtype)


async def hung_up() -> None:
    """At the end of an upload: a caller that hangs up looks like one that has finished, until its
    cancellation is here too and ends this."""
    await asyncio.sleep(_HANG_UP_SECONDS)


class Intake:
    """The rows of one batch, alike and with sizes bounded as they arrive; kept, or only counted."""

    def __init__(self, field: str, *, keep: bool = True) -> None:
        self.rows = 0
        self._field = field
        self._keep = keep
        self._size = 0
        self._first: Queries | None = None
        self._parts: list[Queries] = []

    def add(self, tensor: common_pb2.Tensor) -> Queries:
        """Takes in the next rows, and gives them back."""
        part = tensors.from_tensor(tensor, self._field)
        if self._first is not None:
            check_rows(part, self._first.dtype, self._first.shape[1:], self._field)
        self.rows += len(part)
        self._size += part.nbytes
        if self.rows > MAX_QUERIES:
            raise VoteError(
                ErrorKind.QUERIES_TOO_MANY, field=self._field, got=self.rows, limit=MAX_QUERIES
            )
        if self._size > MAX_QUERY_BYTES:
            raise VoteError(ErrorKind.QUERIES_TOO_LARGE, field=self._field, limit=MAX_QUERY_BYTES)
        if len(part):
            self._first = part[:1].copy() if self._first is None else self._first
            if self._keep:
                self._parts.append(part)
        return part

    def check(self) -> None:
        """Refuses a batch without anything in it."""
        if self._size == 0:
            raise VoteError(ErrorKind.QUERIES_EMPTY, field=self._field)

    def batch(self) -> Queries:
        """All rows."""
        self.check()
        return np.concatenate(self._parts)


async def read_plan(
    messages: AsyncIterator[label_pb2.RequestLabelsRequest],
) -> label_pb2.RequestLabelsRequest:
    """The first message, which has the plan and may have the first queries."""
    first = await anext(messages, label_pb2.RequestLabelsRequest())
    if not first.HasField("plan"):
        raise VoteError(ErrorKind.PLAN_MISSING, field="plan")
    return first


async def read_queries(
    first: label_pb2.RequestLabelsRequest,
    messages: AsyncIterator[label_pb2.RequestLabelsRequest],
) -> Queries:
    """The whole batch."""
    queries = Intake("queries")
    async for _ in _parts(first, messages, queries):
        pass
    return queries.batch()


async def read_digest(
    first: label_pb2.RequestLabelsRequest,
    messages: AsyncIterator[label_pb2.RequestLabelsRequest],
) -> bytes:
    """The digest of a batch that nobody needs: no more of it than a message is in memory."""
    queries = Intake("queries", keep=False)
    digest: tensors.QueryDigest | None = None
    async for part in _parts(first, messages, queries):
        if len(part):
            digest = digest or tensors.QueryDigest(part.dtype, part.shape[1:])
            digest.update(part)
    queries.check()
    assert digest is not None
    return digest.digest()


async def _parts(
    first: label_pb2.RequestLabelsRequest,
    messages: AsyncIterator[label_pb2.RequestLabelsRequest],
    queries: Intake,
) -> AsyncIterator[Queries]:
    """A batch's rows as they arrive, until all have."""
    message: label_pb2.RequestLabelsRequest | None = first
    while message is not None:
        if message.HasField("queries"):
            yield queries.add(message.queries)
        message = await anext(messages, None)
    announced = first.plan.queries
    if announced and queries.rows != announced:
        raise VoteError(
            ErrorKind.QUERIES_INCOMPLETE, field="queries", got=queries.rows, want=announced
        )
    if not announced:
        await hung_up()
