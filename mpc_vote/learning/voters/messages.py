"""What a voter's process is told to begin with: its options, and the agent's data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpc_vote.data.dataset import Dataset
from mpc_vote.learning.voters import ModelInputs, VoterOptions
from mpc_vote.learning.voters.frames import Array
from mpc_vote.tasks import Task

_PLAIN = ("k", "features", "reach", "seed", "model", "plain_http")


def opening(
    name: str, data: Dataset | None, options: VoterOptions
) -> tuple[dict[str, Any], list[Array]]:
    """Header and arrays of the first message."""
    header: dict[str, Any] = {key: getattr(options, key) for key in _PLAIN} | {
        "voter": name,
        "inputs": options.inputs.value,
        "trusted": list(options.trusted),
        "ca": None if options.ca is None else str(options.ca),
        "weights": None if options.weights is None else str(options.weights),
        "task": None if options.task is None else options.task.wire.decode(),
        "data": None if data is None else {"name": data.name, "classes": data.classes},
        "public": options.public is not None,
    }
    arrays = [] if data is None else [data.x, data.y]
    return header, arrays if options.public is None else [*arrays, options.public]


def opened(header: dict[str, Any], arrays: list[Array]) -> tuple[str, Dataset | None, VoterOptions]:
    """What `opening` was given."""
    left = iter(arrays)
    data = None
    if header["data"] is not None:
        data = Dataset(header["data"]["name"], next(left), next(left), header["data"]["classes"])
    options = VoterOptions(
        **{key: header[key] for key in _PLAIN},
        inputs=ModelInputs(header["inputs"]),
        trusted=tuple(header["trusted"]),
        ca=None if header["ca"] is None else Path(header["ca"]),
        weights=None if header["weights"] is None else Path(header["weights"]),
        task=None if header["task"] is None else Task.from_wire(header["task"].encode()),
        public=next(left) if header["public"] else None,
    )
    return header["voter"], data, options
