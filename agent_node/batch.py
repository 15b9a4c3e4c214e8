"""A round's queries at an agent, from their check to the vote.

They are public, and checked as they come: number, shape, dtype, digest, that they are finite, and
that they are inputs of the round's task. Until the vote they wait in memory if they are few, and
else on disk, so that rounds which may never start hold little memory.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mpc_vote.errors import ErrorKind, VoteError
from mpc_vote.proto.mpcvote.v1 import agent_pb2
from mpc_vote.tasks import Task, agreement
from mpc_vote.transport import rpc, tensors
from mpc_vote.voting.spec import Spec

# Of each of the few rounds that an agent has open at a time.
_IN_MEMORY_BYTES = 2 << 20


class Batch:
    """The queries that a spec names, in memory, or in a file without a name, which ends with the
    process."""

    def __init__(self, spec: Spec, file: IO[bytes] | None, task: Task | None = None) -> None:
        self._task = task
        self._shape = (spec.message.queries, *spec.query_shape)
        self._dtype = tensors.dtype_of(spec.message.query_dtype)
        self._want = spec.message.queries_digest
        self._file = file
        self._rows = np.empty(self._shape if file is None else 0, self._dtype)

    @classmethod
    @contextlib.contextmanager
    def opened(cls, spec: Spec, folder: Path, task: Task | None = None) -> Iterator[Batch]:
        """An empty batch, on the disk of this folder unless it is small."""
        if spec.query_bytes <= _IN_MEMORY_BYTES:
            yield cls(spec, None, task)
            return
        with tempfile.TemporaryFile(dir=folder) as file:
            yield cls(spec, file, task)

    async def fill(self, responses: AsyncIterable[agent_pb2.FetchQueriesResponse]) -> None:
        """Takes the queries in, or refuses them."""
        rows, digest = 0, tensors.QueryDigest(self._dtype, self._shape[1:])
        async for response in responses:
            part = tensors.from_tensor(rpc.readable(response, "FetchQueries").queries)
            if part.dtype != self._dtype or part.shape[1:] != self._shape[1:]:
                raise VoteError(ErrorKind.POLICY_REFUSED, why="its queries have another shape")
            if rows + len(part) > self._shape[0]:
                raise VoteError(ErrorKind.POLICY_REFUSED, why="it has more queries than it says")
            tensors.check_finite(part, "queries", rows)
            if self._task is not None:
                agreement.check_rows(self._task, part, "queries", rows)
            digest.update(part)
            if self._file is None:
                self._rows[rows : rows + len(part)] = part
            else:
                self._file.write(part.reshape(-1).data)
            rows += len(part)
        if rows != self._shape[0] or digest.digest() != self._want:
            raise VoteError(ErrorKind.POLICY_REFUSED, why="its queries do not match their digest")

    def read(self) -> npt.NDArray[Any]:
        """The whole batch, in memory."""
        if self._file is None:
            return self._rows
        self._file.seek(0)
        return np.fromfile(self._file, dtype=self._dtype).reshape(self._shape)
