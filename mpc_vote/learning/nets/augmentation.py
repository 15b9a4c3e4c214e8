"""Small random distortions of images, one for each, that leave their classes as they are.

`augment` is given its draws: agents that are trained side by side each have a generator of their
own. `augment_at_random` takes them from torch's.
"""

from __future__ import annotations

import torch
from torch.nn import functional

_SIZES = (0.25, 0.2, 0.12, 0.12, 0.14, 0.14)


def augment(images: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Rotate, shear, zoom and shift images (rows, [channels,] height, width) by six draws each.

    Draws (rows, 6) are uniform from 0 to 1.
    """
    angle, shear, zoom_row, zoom_column, right, down = (
        (draws * 2 - 1) * torch.tensor(_SIZES)
    ).unbind(dim=1)
    sine, cosine = torch.sin(angle), torch.cos(angle)
    top = torch.stack([(1 + zoom_column) * cosine, (1 + zoom_column) * (shear - sine), right], 1)
    bottom = torch.stack([(1 + zoom_row) * sine, (1 + zoom_row) * cosine, down], 1)
    planes = images.reshape(len(images), -1, *images.shape[-2:])
    grid = functional.affine_grid(
        torch.stack([top, bottom], dim=1), list(planes.shape), align_corners=False
    )
    return functional.grid_sample(planes, grid, align_corners=False).reshape(images.shape)


def augment_at_random(images: torch.Tensor) -> torch.Tensor:
    """The same by fresh draws from torch's generator."""
    return augment(images, torch.rand(len(_SIZES), len(images)).T)
