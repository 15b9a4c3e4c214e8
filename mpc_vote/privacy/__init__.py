"""Privacy accounting: mechanisms, the accountant that composes them, the ledger of spends."""

from mpc_vote.privacy.accountant import (
    Epsilons,
    Unsupported,
    epsilon,
    epsilons,
    exact_epsilon,
    gaussian_exact_epsilon,
    simple_epsilon,
)
from mpc_vote.privacy.charging import Against, charged_epsilon
from mpc_vote.privacy.ledger import (
    AlreadyCharged,
    Budget,
    BudgetExhausted,
    Ledger,
    LedgerError,
    Spend,
)
from mpc_vote.privacy.mechanisms import (
    Clipped,
    CoinVote,
    Decided,
    GaussianScreen,
    GaussianVote,
    Level,
    Mechanism,
    PoissonGaussian,
    SkellamScreen,
    SkellamVote,
    mechanism_from_json,
)

__all__ = [
    "Against",
    "AlreadyCharged",
    "Budget",
    "BudgetExhausted",
    "Clipped",
    "CoinVote",
    "Decided",
    "Epsilons",
    "GaussianScreen",
    "GaussianVote",
    "Ledger",
    "LedgerError",
    "Level",
    "Mechanism",
    "PoissonGaussian",
    "SkellamScreen",
    "SkellamVote",
    "Spend",
    "Unsupported",
    "charged_epsilon",
    "epsilon",
    "epsilons",
    "exact_epsilon",
    "gaussian_exact_epsilon",
    "mechanism_from_json",
    "simple_epsilon",
]
