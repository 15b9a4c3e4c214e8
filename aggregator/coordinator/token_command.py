"""`mpc-vote token`: one-time tokens for agents that are to enrol."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from aggregator.coordinator.archive import DATABASE
from aggregator.coordinator.tokens import TOKENS, Tokens
from mpc_vote.app import process
from mpc_vote.app.config import ConfigError, Name, Positive, Settings
from mpc_vote.app.process import CommandError
from mpc_vote.pki import pem
from mpc_vote.pki.identity import Identity, Role


class TokenSettings(Settings):
    """Makes a one-time token per agent name, for use with the coordinator's --enrol-listen.

    A token is a secret until it is used: it makes its holder the agent of that name. Run this where
    the coordinator's data is, and only for names that have no certificate from elsewhere.
    """

    command: ClassVar[str] = "token"

    data_dir: Path = Field(description="the coordinator's data folder")
    names: list[Name] = Field([], description="agents to make tokens for; repeat, or use commas")
    pool: Name | None = Field(None, description="also for NAME-0, NAME-1 and so on")
    count: int = Field(1, ge=1, le=10_000, description="how many of these")
    hours: Positive = Field(24.0, le=8_760, description="how long the tokens can be used")
    out: Path | None = Field(
        None, description="folder for a file per token, named as its agent; else they are printed"
    )
    renew: bool = Field(
        False,
        description="also for names that have enrolled, or have a token, which is revoked",
    )
    keep: bool = Field(False, description="skip names that have a token or have enrolled")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote token`."""
    return process.run(TokenSettings, arguments, _main)


async def _main(settings: TokenSettings) -> None:
    pool = [f"{settings.pool}-{number}" for number in range(settings.count)]
    names = dict.fromkeys([*settings.names, *(pool if settings.pool else [])])
    for name in names:
        Identity(Role.AGENT, name)
    if not names:
        raise ConfigError("--names: none are given: pass --names alice,bob, or --pool agent")
    if settings.keep and settings.renew:
        raise ConfigError("--keep and --renew contradict each other: pass one of them")
    if settings.out is not None:
        settings.out.mkdir(parents=True, exist_ok=True, mode=0o700)
        if settings.out.stat().st_mode & 0o007:
            raise CommandError(f"others may read {settings.out}: run chmod 700 {settings.out}")
    _check_folder(settings.data_dir)
    with contextlib.closing(Tokens(settings.data_dir / TOKENS)) as tokens:
        seconds = settings.hours * 3600
        made = tokens.make(names, seconds, renew=settings.renew, keep=settings.keep)
    for name, token in made.items():
        if settings.out is None:
            print(f"{name} {token}")
        else:
            pem.write(settings.out / name, f"{token}\n".encode(), pem.SECRET)
            print(f"{name}: {settings.out / name}")


def _check_folder(folder: Path) -> None:
    """Refuses a folder in which no coordinator would look: the tokens would be good for nothing."""
    if not folder.is_dir():
        what = "a file" if folder.exists() else "not there"
        raise ConfigError(f"--data-dir: {folder} is {what}: name the coordinator's data folder")
    # Tokens can be made before the coordinator is started for the first time, in an empty folder.
    known = any((folder / name).exists() for name in (DATABASE, TOKENS))
    if not known and any(folder.iterdir()):
        raise ConfigError(
            f"--data-dir: {folder} is not a coordinator's data folder, which has a {DATABASE}: "
            "name that, or an empty one before the coordinator's first start"
        )
