"""Where the literature is wrong, by exact divergences: what `docs/privacy.md` says of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import log_ndtr

from tests.unit.privacy.exact import FloatArray

NODES = np.linspace(-22.0, 22.0, 441)
LOG_WEIGHTS = math.log(NODES[1] - NODES[0]) - NODES**2 / 2 - math.log(2 * math.pi) / 2


def log_outcome(totals: list[float], sigma: float) -> FloatArray:
    """Log probabilities that each class has the largest noisy total, by quadrature."""
    values = []
    for i, own in enumerate(totals):
        others = np.delete(totals, i)
        terms = log_ndtr(NODES[:, None] + (own - others) / sigma).sum(axis=1)
        values.append(np.logaddexp.reduce(LOG_WEIGHTS + terms))
    return np.array(values)


def divergence(log_p: FloatArray, log_q: FloatArray, order: float) -> float:
    """Renyi's."""
    return float(np.logaddexp.reduce(order * log_p + (1 - order) * log_q) / (order - 1))


def theorem_6(log_q: float, order: float, rate: float) -> float:
    """Papernot et al., "Scalable Private Learning with PATE" (2018), Theorem 6, at its best m2.

    With q the chance of another winner on D, r the Renyi divergence at order 1, L = -log q,
    m2 = sqrt(L / r), e2 = m2 r and m1 = m2 + 1: log[(1-q) A^(a-1) + q B^(a-1)] / (a-1).
    """
    size, q = -log_q, math.exp(log_q)
    m2 = math.sqrt(size / rate)
    assert m2 > 1 and order <= m2 + 1 and size > m2 * rate
    a = (1 - q) / (1 - (q * math.exp(m2 * rate)) ** ((m2 - 1) / m2))
    b = math.exp((m2 + 1) * rate + size / m2)
    return math.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)


def test_the_exact_outcome_is_right() -> None:
    expected = log_ndtr(3.0 / (2.0 * math.sqrt(2)))
    assert log_outcome([3.0, 0.0], 2.0)[0] == pytest.approx(expected, rel=1e-9)
    assert np.exp(log_outcome([5.0, 1.0, 0.0], 3.0)).sum() == pytest.approx(1)


def test_q_of_the_data_alone_would_not_do() -> None:
    """Theorem 6 at the q of D bounds one direction only: a vote moved refutes it in the other."""
    sigma, order = 2.0, 8.0
    here, there = log_outcome([25.0, 0.0], sigma), log_outcome([24.0, 1.0], sigma)
    alone = theorem_6(here[1], order, 2 / (2 * sigma**2))
    assert divergence(here, there, order) < alone == pytest.approx(0.720, abs=1e-3)
    assert divergence(there, here, order) == pytest.approx(0.925, abs=1e-3)


def test_theorem_6_known_value() -> None:
    rate = 2 / (2 * 40.0**2)
    assert theorem_6(math.log(1e-6), 8.0, rate) == pytest.approx(5.87596e-7, rel=1e-5)


def test_one_voter_refutes_the_lemma() -> None:
    """One vote for either of two classes: all the data there can be, and both its neighbours.

    The lemma: if M is (2a, e)-RDP and one output has probability 1-q under D, then D_a is at most
    -log(1-q) + log(1 + sqrt(q) (1-q)^(a-1) e^((a-1) e)) / (a-1).
    """
    a, sigma = 2.0, 0.55
    here, there = log_outcome([1.0, 0.0], sigma), log_outcome([0.0, 1.0], sigma)
    rdp = max(divergence(here, there, 2 * a), divergence(there, here, 2 * a))
    q = math.exp(here[1])
    inner = math.sqrt(q) * (1 - q) ** (a - 1) * math.exp((a - 1) * rdp)
    claimed = -math.log1p(-q) + math.log1p(inner) / (a - 1)
    exact = divergence(here, there, a)
    assert q == pytest.approx(0.0993, abs=1e-4)
    assert exact == pytest.approx(2.1018, abs=1e-3)
    assert claimed < 0.65 * exact
