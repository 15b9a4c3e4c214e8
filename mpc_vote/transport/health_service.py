"""Health as every role serves it; apart from `rpc`, because clients don't have its package."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health

SERVICE_NAME: str = health.SERVICE_NAME


class Health(health.aio.HealthServicer):  # type: ignore[misc]
    """Health as it is now."""

    async def Watch(self, request: Any, context: Any) -> None:
        """Not served: it would keep what a caller sent, of any size, for as long as that likes."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Ask again with Check.")
