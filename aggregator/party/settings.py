"""Settings of a party."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from mpc_vote.app.config import Address, Name, Parties, Positive, RoleSettings
from mpc_vote.mpc.cut_and_choose import MAX_COPIES


class PartySettings(RoleSettings):
    """A compute party: holds one share of every ballot. Its certificate says which one it is."""

    command: ClassVar[str] = "party"

    listen: Address = Field("127.0.0.1:7100", description="host:port to serve on")
    data_dir: Path = Field(description="folder for the record of rounds ever opened")
    peer_listen: Address = Field(
        "127.0.0.1:7150", description="host:port for links from parties of lower rank"
    )
    peers: Parties = Field(
        description="all parties in rank order, this one included, and where they take links "
        "(their --peer-listen): name=host:port,..."
    )
    dealer: Address = Field(description="host:port of the dealer")
    dealer_name: Name = Field("dealer", description="name in the dealer's certificate")
    exchange_seconds: Positive = Field(30.0, description="longest wait for a peer or the dealer")
    pool_mib: int = Field(
        128, ge=1, description="memory for preprocessing that is dealt ahead of its use, in MiB"
    )
    stock_mib: int = Field(
        64,
        ge=0,
        description="memory for whole rounds' preprocessing that is dealt and checked before they "
        "are asked for, in MiB; 0: none",
    )
    stock_seconds: Positive = Field(
        900.0, description="how long preprocessing that no round takes is kept in stock"
    )
    deal_copies: int = Field(
        8,
        ge=2,
        le=MAX_COPIES,
        description="copies of preprocessing to be dealt, of which all but one are checked: a "
        "dealer that cheats is undetected once in so many times; the same at all parties",
    )
