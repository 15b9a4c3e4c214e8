"""The names that others may rely on: whoever adds or removes one does it here as well."""

from __future__ import annotations

import importlib

import pytest

PUBLIC = {
    "mpc_vote": {
        "AsyncLabelClient",
        "Cost",
        "Forecast",
        "LabelClient",
        "LabelResult",
        "Model",
        "Plan",
        "Progress",
        "RoundPlan",
        "Task",
        "VoteError",
    },
    "mpc_vote.argmax": {
        "argmax_plan",
        "integer_tensor",
        "register_max_method",
        "secure_argmax",
    },
    "mpc_vote.data": {
        "Dataset",
        "Partition",
        "load_embedded",
        "load_part",
        "save_part",
        "split_iid",
        "split_skewed",
    },
    "mpc_vote.privacy": {
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
    },
    "mpc_vote.voting.ballots": {
        "ABSTAIN",
        "BALLOTS",
        "KNN_COUNT",
        "KNN_FREQUENCY",
        "MULTI_LABEL",
        "ONE_HOT",
        "BallotCode",
        "BallotKind",
        "IntArray",
    },
}


@pytest.mark.parametrize("package", PUBLIC)
def test_a_package_exports_just_these_names(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) == PUBLIC[package]
    for name in module.__all__:
        assert getattr(module, name) is not None
