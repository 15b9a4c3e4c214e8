"""mpc-vote: secure multi-party voting for private federated labelling."""

from typing import TYPE_CHECKING, Any

from mpc_vote import _tls as _tls

if TYPE_CHECKING:
    from mpc_vote.client import AsyncLabelClient, LabelClient, LabelResult, Plan, Progress
    from mpc_vote.errors import VoteError
    from mpc_vote.tasks import Task

__all__ = [
    "AsyncLabelClient",
    "LabelClient",
    "LabelResult",
    "Plan",
    "Progress",
    "Task",
    "VoteError",
]


def __getattr__(name: str) -> Any:
    """Loads the client when it is first asked for, so that the library's parts stay light."""
    if name not in __all__:
        raise AttributeError(f"module 'mpc_vote' has no attribute {name!r}")
    from mpc_vote import client, errors, tasks

    homes: dict[str, Any] = {"VoteError": errors, "Task": tasks}
    return getattr(homes.get(name, client), name)
