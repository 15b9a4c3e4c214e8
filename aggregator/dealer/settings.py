"""Settings of the dealer."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from mpc_vote.app.config import Address, RoleSettings


class DealerSettings(RoleSettings):
    """Makes correlated randomness for the parties. Run it where no party's operator has access."""

    command: ClassVar[str] = "dealer"

    listen: Address = Field("127.0.0.1:7200", description="host:port to serve parties on")
