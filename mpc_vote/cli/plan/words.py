"""How shares of labels, epsilons and noise are written."""

from __future__ import annotations

from mpc_vote.privacy.rounding import round_up
from mpc_vote.voting.forecast import Forecast


def share(part: float) -> str:
    """In whole percent, never more than there is."""
    return f"{100 * part // 1:.0f} %"


def labels(found: Forecast) -> str:
    """A forecast's range."""
    low, high = (f"{100 * part // 1:.0f}" for part in (found.low, found.high))
    return f"{high} %" if low == high else f"{low}-{high} %"


def agreed(found: Forecast) -> str:
    """What a forecast assumes."""
    return f"where {100 * found.agreement:g} % of the votes agree"


def rounded(epsilon: float) -> str:
    """As everywhere, but large ones without an exponent."""
    text = round_up(epsilon)
    return f"{float(text):,.0f}" if epsilon >= 1000 else text


def told_noise(verified: bool, sigma: float, collusion: int) -> str:
    """Whose noise a round has, and who may know of it."""
    if verified:
        return f"coins of the committee, sigma {sigma:g} votes, whichever agents collude"
    return f"Skellam of the agents, sigma {sigma:g} votes, {collusion} may collude"
