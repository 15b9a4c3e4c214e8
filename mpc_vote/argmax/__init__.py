"""Secure argmax: rows of secret-shared totals in, shares of each row's winner out, and no more.

`engine` is the interface, `registry` lists the engines: `table` finds the winner in three rounds
per level, `crypten` is CrypTen's own argmax. Both run on a channel among the parties
(`mpc_vote.mpc.channel`) and on preprocessing from the dealer (`mpc_vote.mpc.preprocessing`).
`secure_argmax` replaces CrypTen's `argmax`; after `register_max_method` CrypTen's own setting
`max_method` has the table engine among its values.
"""

from __future__ import annotations

from typing import Any

__all__ = ["argmax_plan", "integer_tensor", "register_max_method", "secure_argmax"]


def __getattr__(name: str) -> Any:
    # These need torch and CrypTen, which take seconds to import; most of the package does not.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mpc_vote.argmax import drop_in, switch

    return getattr(switch if name == "register_max_method" else drop_in, name)
