"""What CrypTen and torchvision need to be imported beside the pinned torch.

CrypTen 0.4.1 looks for a torch module that has moved; its ONNX path, the only user, is not used
here. torchvision's compiled operators don't load beside a CPU build of torch, and importing it then
fails on operators that models, datasets and transforms don't call: declaring them is enough.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

_MOVED = "torch.onnx._internal.registration"
_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

# A library of operators lives as long as this reference.
_declared: list[torch.library.Library] = []


def import_crypten() -> Any:
    """CrypTen, importable."""
    if _MOVED not in sys.modules:
        stub = types.ModuleType(_MOVED)
        stub.registry = types.SimpleNamespace()  # type: ignore[attr-defined]
        sys.modules[_MOVED] = stub
    import crypten

    return crypten


def import_torchvision() -> Any:
    """torchvision, importable with or without its compiled operators."""
    try:
        import torchvision
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for schema in _OPERATORS:
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)
        import torchvision
    return torchvision


def versions() -> str:
    """Loads the heavy packages and says which they are: proof that they fit together."""
    crypten, torchvision = import_crypten(), import_torchvision()
    return (
        f"torch {torch.__version__}, torchvision {torchvision.__version__}, "
        f"crypten {crypten.__version__}"
    )
