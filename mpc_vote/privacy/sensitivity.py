"""How far neighbouring inputs move what noise is added to."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Sensitivity:
    """The most that the total over one query moves between neighbours, in units.

    Where they are given, at most `cells` cells move, each by at most `step` units: the shape that
    the exact account of integer noise needs. Without them only the norms are known.
    """

    l1: int
    l2_squared: int
    cells: int | None = None
    step: int | None = None

    def __post_init__(self) -> None:
        for name in ("l1", "l2_squared", "cells", "step"):
            value = getattr(self, name)
            if value is None and name in ("cells", "step"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive integer of units, not {value!r}")
        if self.cells is None or self.step is None:
            if self.cells != self.step:
                raise ValueError("cells and step are known together or not at all")
        elif self.l1 > self.cells * self.step or self.l2_squared > self.cells * self.step**2:
            raise ValueError(f"{self.cells} cells that move by {self.step} have smaller norms")

    @classmethod
    def of_cells(cls, cells: int, step: int) -> Sensitivity:
        """At most `cells` cells move, each by at most `step` units."""
        return cls(cells * step, cells * step**2, cells, step)

    def of_maximum(self) -> Sensitivity:
        """How far the largest total moves: no further than the cell that moves furthest."""
        least = self.step if self.step is not None else min(self.l1, math.isqrt(self.l2_squared))
        return Sensitivity.of_cells(1, least)
