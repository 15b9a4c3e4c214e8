"""CrypTen's own switch: `cfg.functions.max_method = "table"`.

    from mpc_vote.argmax import register_max_method
    from mpc_vote.compat import import_crypten

    crypten = import_crypten()
    register_max_method()
    crypten.init()
    crypten.cfg.functions.max_method = "table"
    crypten.cfg.functions.max_bound = 100  # no value exceeds it in absolute value
    x.max(dim=1), x.argmin(dim=1), x.softmax(dim=1), x.max_pool2d(2)

Both settings can be in a configuration file of CrypTen's, or in `cfg.temp_override`. What CrypTen
builds on its maximum uses the table as well: pooling, softmax, their gradients. `max_bound` is in
the tensors' own values, and has to hold for every tensor of which the maximum is taken: see
`mpc_vote.argmax.drop_in` for that, for ties, and for who is trusted.
"""

from __future__ import annotations

import functools
from typing import Any

from mpc_vote.argmax import provider
from mpc_vote.argmax.drop_in import secure_argmax
from mpc_vote.compat import import_crypten

TABLE_METHOD = "table"

# CrypTen's max pooling pads each party's share with -2^24, in units of the encoding.
_PAD_UNITS = 1 << 24


def register_max_method() -> None:
    """Makes `table` a `max_method` of this process's CrypTen; again, it does nothing.

    Each party calls it, and so does the process of a trusted third party.
    """
    crypten = import_crypten()
    maximum = crypten.common.functions.maximum
    if getattr(maximum._argmax_helper, "__wrapped__", None) is not None:
        return
    tensor = crypten.CrypTensor
    maximum._argmax_helper = _helper(maximum._argmax_helper)
    tensor.argmax = _argmax(tensor.argmax)
    tensor.max_pool2d = _max_pool2d(tensor.max_pool2d)
    provider.serve()


def _chosen() -> bool:
    return bool(import_crypten().cfg.functions.max_method == TABLE_METHOD)


def _bound() -> float:
    bound = import_crypten().cfg.functions.get("max_bound")
    if bound is None:
        raise ValueError(
            "max_method is table, and the range of the values is not stated: set "
            "crypten.cfg.functions.max_bound to what none exceeds in absolute value"
        )
    return bound  # type: ignore[no-any-return]


def _helper(stock: Any) -> Any:
    """What CrypTen's `max` finds the largest element by."""

    @functools.wraps(stock)
    def helper(
        enc_tensor: Any,
        dim: int | None = None,
        one_hot: bool = True,
        method: str = "pairwise",
        _return_max: bool = False,
    ) -> Any:
        if method != TABLE_METHOD or enc_tensor.dim() == 0:
            return stock(enc_tensor, dim, one_hot, method, _return_max)
        hot = secure_argmax(enc_tensor, dim, bound=_bound())
        # The largest value is CrypTen's product of the tensor and its one-hot argmax.
        return (hot, None) if _return_max else hot

    return helper


def _argmax(stock: Any) -> Any:
    """An index takes a round less than the one-hot position, from which CrypTen derives it."""

    @functools.wraps(stock)
    def argmax(
        self: Any, dim: int | None = None, keepdim: bool = False, one_hot: bool = True
    ) -> Any:
        if not _chosen() or self.dim() == 0:
            return stock(self, dim, keepdim, one_hot)
        return secure_argmax(self, dim, keepdim, one_hot, bound=_bound())

    return argmax


def _max_pool2d(stock: Any) -> Any:
    """Pads are compared, too: their value must be in the range."""

    @functools.wraps(stock)
    def max_pool2d(
        self: Any,
        kernel_size: Any,
        padding: Any = 0,
        stride: Any = None,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        given = (kernel_size, padding, stride, dilation, ceil_mode, return_indices)
        if not _chosen() or not (ceil_mode or padding not in (0, (0, 0))):
            return stock(self, *given)
        crypten = import_crypten()
        pads = crypten.communicator.get().get_world_size() * _PAD_UNITS / int(self.encoder._scale)
        with crypten.cfg.temp_override({"functions.max_bound": max(_bound(), pads)}):
            return stock(self, *given)

    return max_pool2d
