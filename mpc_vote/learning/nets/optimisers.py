"""The rules that networks are trained by, and the one thread that they run on.

A rule takes one step at a rate, along the gradients that the parameters hold by then. `AdamW`
serves most networks, at the rates of `one_cycle`; `GradientDescent` the local steps of FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter).

    torch.optim has it, but brings in torch's compiler: 65 MB and a second for every agent.
    """

    _BETAS, _EPSILON = (0.9, 0.999), 1e-8

    def __init__(self, parameters: Iterable[torch.Tensor], decay: float) -> None:
        self._parameters = list(parameters)
        self._decay = decay
        self._mean = [torch.zeros_like(p) for p in self._parameters]
        self._square = [torch.zeros_like(p) for p in self._parameters]
        self._steps = 0

    @torch.no_grad()
    def step(self, rate: float) -> None:
        self._steps += 1
        first, second = self._BETAS
        bias = math.sqrt(1 - second**self._steps)
        size = rate * bias / (1 - first**self._steps)
        for point, mean, square in zip(self._parameters, self._mean, self._square, strict=True):
            if point.grad is None:
                continue
            mean.lerp_(point.grad, 1 - first)
            square.mul_(second).addcmul_(point.grad, point.grad, value=1 - second)
            point.mul_(1 - rate * self._decay)
            point.addcdiv_(mean, square.sqrt().add_(self._EPSILON * bias), value=-size)


class GradientDescent:
    """Plain gradient steps, with weight decay."""

    def __init__(self, parameters: Iterable[torch.Tensor], decay: float) -> None:
        self._parameters, self._decay = list(parameters), decay

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for point in self._parameters:
            if point.grad is not None:
                point.mul_(1 - rate * self._decay).add_(point.grad, alpha=-rate)


def one_cycle(peak: float, steps: int) -> list[float]:
    """Rates that rise for the first third and then fall to nothing, along cosines."""
    rise = max(1, round(0.3 * steps))

    def along(start: float, end: float, part: float) -> float:
        return end + (start - end) * (1 + math.cos(math.pi * part)) / 2

    return [
        along(peak / 25, peak, step / rise)
        if step < rise
        else along(peak, 0.0, (step - rise) / max(1, steps - rise))
        for step in range(steps)
    ]


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: results then depend on no number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
