"""Privacy accounting: mechanisms, the accountant that composes them, the ledger of spends."""

from mpc_vote.privacy.accountant import epsilon, gaussian_exact_epsilon, simple_epsilon
from mpc_vote.privacy.ledger import (
    AlreadyCharged,
    Budget,
    BudgetExhausted,
    Ledger,
    LedgerError,
    Spend,
)
from mpc_vote.privacy.mechanisms import (
    GaussianVote,
    Level,
    Mechanism,
    SkellamVote,
    mechanism_from_json,
)

__all__ = [
    "AlreadyCharged",
    "Budget",
    "BudgetExhausted",
    "GaussianVote",
    "Ledger",
    "LedgerError",
    "Level",
    "Mechanism",
    "SkellamVote",
    "Spend",
    "epsilon",
    "gaussian_exact_epsilon",
    "mechanism_from_json",
    "simple_epsilon",
]
