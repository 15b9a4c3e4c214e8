"""mpc-vote: secure multi-party voting for private federated labelling."""

from typing import TYPE_CHECKING, Any

from mpc_vote import _tls as _tls

if TYPE_CHECKING:
    from mpc_vote.client import AsyncLabelClient, LabelClient, LabelResult, Plan, Progress
    from mpc_vote.errors import VoteError
    from mpc_vote.results import Cost, Model
    from mpc_vote.tasks import Task
    from mpc_vote.voting.forecast import Forecast
    from mpc_vote.voting.round_plan import RoundPlan

_HOMES = {
    "AsyncLabelClient": "mpc_vote.client",
    "Cost": "mpc_vote.results",
    "Forecast": "mpc_vote.voting.forecast",
    "LabelClient": "mpc_vote.client",
    "LabelResult": "mpc_vote.client",
    "Model": "mpc_vote.results",
    "Plan": "mpc_vote.client",
    "Progress": "mpc_vote.client",
    "RoundPlan": "mpc_vote.voting.round_plan",
    "Task": "mpc_vote.tasks",
    "VoteError": "mpc_vote.errors",
}
__all__ = [
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
]


def __getattr__(name: str) -> Any:
    """Loads the client when it is first asked for, so that the library's parts stay light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'mpc_vote' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
