"""`mpc-vote certs`: an authority, and a certificate per role and name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from mpc_vote import process
from mpc_vote.config import Settings
from mpc_vote.identity import CertificateAuthority, Identity, IdentityError, Role


class CertsSettings(Settings):
    """Makes a certificate authority if there is none, and issues a certificate per role/name.

    Each certificate goes with its key to OUT/<role>/<name>, which is all that this process needs.
    Keep OUT/ca to yourself: whoever has its key can be anybody.
    """

    command: ClassVar[str] = "certs"

    out: Path = Field(Path("certs"), description="folder for the authority and the certificates")
    issue: list[str] = Field(
        [], description="role/name to issue for, e.g. party/party-0; repeat or separate by commas"
    )
    hosts: list[str] = Field(
        [], description="further host names or addresses to put into these certificates"
    )
    days: int = Field(365, ge=1, le=36_500, description="how long the certificates are valid")
    renew: bool = Field(False, description="replace certificates that exist")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote certs`."""
    return process.run(CertsSettings, arguments, _main)


async def _main(settings: CertsSettings) -> None:
    identities = [_identity(text) for text in settings.issue]
    directory = settings.out / "ca"
    if (directory / "ca.pem").exists():
        authority = CertificateAuthority.load(directory)
    else:
        authority = CertificateAuthority.create(directory)
        print(f"authority: {directory}")
    for identity in identities:
        target = settings.out / identity.role / identity.name
        authority.issue(
            identity, target, hosts=settings.hosts, days=settings.days, overwrite=settings.renew
        )
        print(f"{identity}: {target}")


def _identity(text: str) -> Identity:
    role, _, name = text.partition("/")
    if role not in set(Role):
        raise IdentityError(
            f"{text!r} is not role/name with a role among {', '.join(Role)}, e.g. party/party-0."
        )
    return Identity(Role(role), name)
