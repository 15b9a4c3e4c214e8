"""How many labels will be right: what noise leaves of a winner's lead, before anybody is asked.

The right class leads class j by some votes, and every total has independent noise of one standard
deviation. With z the winner's own noise, in such deviations, the label is right with probability
E[prod_j Phi(z + lead_j / noise)], and with the same lead over all of C classes E[Phi(z + lead /
noise)^(C-1)]. The noise is of integers; a vote is many of its units, so it is approximated by the
normal distribution.

What the lead will be nobody knows beforehand, so a user states an *agreement*: the part of the
votes on a query that name its right class. Where the others go makes a range. log Phi is concave,
so of all ways to spread them an even one is the best for every z, and all on one rival the worst:
`Forecast.high` and `Forecast.low`. Where queries differ in agreement the mean over them counts, and
that is below the forecast for their mean agreement as long as most labels are right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpc_vote.voting.ballots import BallotKind
from mpc_vote.voting.spec import Spec

_Doubles = npt.NDArray[np.float64]

# The trapezoidal rule is exact to rounding for such integrands, at this step and width.
_Z: _Doubles = np.linspace(-9.0, 9.0, 721)
_WEIGHTS: _Doubles = np.exp(-(_Z**2) / 2) / np.exp(-(_Z**2) / 2).sum()
_FAR = 40.0


def win_probability(leads: Sequence[float], noise: float, repeats: Sequence[int] = ()) -> float:
    """That a class comes out first which has so many votes more than each other one.

    `noise` is the standard deviation of every total's; each lead may stand for several classes.
    """
    if not 0 < noise < math.inf:
        raise ValueError(f"noise must be positive, not {noise}")
    product = np.ones_like(_Z)
    for lead, times in zip(leads, repeats or [1] * len(leads), strict=True):
        product *= _normal(_Z + min(max(lead / noise, -_FAR), _FAR)) ** times
    return min(1.0, float(np.dot(_WEIGHTS, product)))


@dataclass(frozen=True)
class Poll:
    """What meets in the totals of one query: `votes` at most, of `agents`, and `noise` in votes."""

    kind: BallotKind
    classes: int
    agents: int
    votes: float
    noise: float

    @classmethod
    def of(
        cls,
        kind: BallotKind,
        classes: int,
        ks: Sequence[int],
        *,
        sigma: float,
        quorum: int,
        collusion: int,
        verified: bool,
        participation: float = 1.0,
    ) -> Poll:
        """Of agents with these k, or any number for each if the kind has none.

        Of them that part takes part, and no fewer than the quorum. In a verified round the noise is
        sigma. Else everyone's noise is in the totals, also what the quorum could do without: those
        who hide a colluding agent's or an absent one's add more than sigma if nobody colludes or is
        absent.
        """
        if not 0 < participation <= 1:
            raise ValueError(f"participation must be above 0 and at most 1, not {participation}")
        counted = max(quorum, round(participation * len(ks)))
        noise = sigma if verified else sigma * math.sqrt(counted / (quorum - collusion))
        return cls(kind, classes, counted, kind.votes(ks) * counted / len(ks), noise)

    @classmethod
    def of_spec(cls, spec: Spec, participation: float = 1.0) -> Poll:
        """Of a round."""
        m = spec.message
        return cls.of(
            spec.ballot,
            m.classes,
            list(spec.roster.values()),
            sigma=m.sigma,
            quorum=m.quorum,
            collusion=m.collusion,
            verified=m.verified,
            participation=participation,
        )

    @property
    def chance(self) -> float:
        """The part of right labels among guesses."""
        return 1 / self.kind.row_classes(self.classes)


@dataclass(frozen=True)
class Forecast:
    """The part of right labels where this part of the votes is right, at least and at most."""

    agreement: float
    low: float
    high: float
    chance: float

    @property
    def drowned(self) -> bool:
        """Whether labels are nearer to guesses than to the truth, wherever other votes go."""
        return self.high < (1 + self.chance) / 2

    @property
    def doubtful(self) -> bool:
        """Whether they may be."""
        return self.low < (1 + self.chance) / 2


def forecast(poll: Poll, agreement: float, turnout: float = 1.0) -> Forecast:
    """What part of the labels will be right.

    `turnout` is the part of the votes that are cast at all: neighbours beyond the reach and agents
    that abstain cast none.
    """
    if not 0 <= agreement <= 1:
        raise ValueError(f"agreement must be 0 to 1, not {agreement}")
    if not 0 < turnout <= 1:
        raise ValueError(f"turnout must be above 0 and at most 1, not {turnout}")
    ends = _attribute if poll.kind.attributes else _class
    low, high = sorted(ends(poll, agreement, turnout))
    return Forecast(agreement, low, high, poll.chance)


def warnings(spec: Spec, agreement: float = 1.0) -> list[str]:
    """What to know before asking: where noise drowns the lead even so."""
    poll = Poll.of_spec(spec)
    found = forecast(poll, agreement)
    if not found.drowned:
        return []
    return [
        f"Sigma {spec.message.sigma:g} is large for at most {poll.votes:g} votes on a query: "
        f"labels will be close to random. Where {100 * agreement:g} % of the votes agree, only "
        f"{100 * found.high:.0f} % of the labels will be right, and guesses are in "
        f"{100 * found.chance:.3g} %. Lower sigma, or have more agents or neighbours vote."
    ]


def _class(poll: Poll, agreement: float, turnout: float) -> tuple[float, float]:
    """Other votes all for one rival, or spread evenly."""
    right, wrong = (turnout * poll.votes * part for part in (agreement, 1 - agreement))
    others = poll.classes - 1
    rival = win_probability([right - wrong, right], poll.noise, [1, others - 1])
    even = win_probability([right - wrong / others], poll.noise, [others])
    return rival, even


def _attribute(poll: Poll, agreement: float, turnout: float) -> tuple[float, float]:
    """An attribute that is there, and one that is not: half of the agents is public, and has no
    noise; who casts no vote says no."""
    half = poll.agents / 2
    yes = turnout * poll.votes * agreement - half
    no = half - turnout * poll.votes * (1 - agreement)
    found = _normal(np.array([yes, no]) / poll.noise)
    return float(found[0]), float(found[1])


def _normal(x: _Doubles) -> _Doubles:
    """The normal distribution function."""
    return np.array([math.erfc(-one / math.sqrt(2)) / 2 for one in x])
