"""The one model that a server trains from what agents send, as a stack of one network.

FedAvg, DP-FedAvg and DP-FedSGD move it by vectors: all parameters, one after the other. Buffers
(statistics that points are standardised by) stay as they are; nothing private may be in them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import nn

from mpc_vote.data.dataset import FloatArray, check_points
from mpc_vote.learning.nets.optimisers import one_thread

M = TypeVar("M", bound=nn.Module)
Stack = Callable[[int], M]
"""Makes a stack of so many networks; what their parameters are does not matter."""

_PREDICT_ROWS = 128


class CommonModel(Generic[M]):
    """A copy of `start` that moves by what the server gets, with momentum."""

    def __init__(self, start: M, momentum: float) -> None:
        if any(value.ndim < 1 or len(value) != 1 for value in start.state_dict().values()):
            raise ValueError("a common model must start from a stack of exactly one network")
        self.network = copy.deepcopy(start)
        self._momentum = momentum
        self._velocity = torch.zeros(flatten(start).shape[1], dtype=torch.float64)

    def spread(self, stack: Stack[M], agents: int) -> M:
        """So many copies as one stack."""
        network = stack(agents)
        state = self.network.state_dict()
        network.load_state_dict({k: v.expand(agents, *v.shape[1:]) for k, v in state.items()})
        return network

    @torch.no_grad()
    def move(self, update: torch.Tensor) -> None:
        """One step along the velocity after this update, a vector in the order of `flatten`."""
        self._velocity = self._momentum * self._velocity + update
        parameters = list(self.network.parameters())
        parts = torch.split(self._velocity, [value.numel() for value in parameters])
        for value, part in zip(parameters, parts, strict=True):
            value.add_(part.reshape(value.shape))


def flatten(network: nn.Module) -> torch.Tensor:
    """All parameters of each network of a stack, (networks, parameters)."""
    return torch.cat([value.detach().flatten(1) for value in network.parameters()], dim=1)


def predict_logits(network: nn.Module, x: FloatArray) -> FloatArray:
    """Logits of a stack of one, (rows, classes)."""
    check_points(x)
    if not len(x):
        raise ValueError("there are no points to predict")
    points = torch.from_numpy(np.ascontiguousarray(x))
    network.eval()
    with one_thread(), torch.inference_mode():
        parts = [network(part[None])[0] for part in torch.split(points, _PREDICT_ROWS)]
    logits: FloatArray = torch.cat(parts).numpy()
    return logits
