"""`mpc-vote certs`: an authority, and a certificate per role and name."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from mpc_vote.app import process
from mpc_vote.app.config import ConfigError, Settings
from mpc_vote.pki import pem
from mpc_vote.pki.authority import CertificateAuthority
from mpc_vote.pki.identity import Identity, IdentityError, Role


class CertsSettings(Settings):
    """Makes a certificate authority if there is none, and issues a certificate per role/name.

    Each certificate goes with its key to OUT/<role>/<name>, which is all that this process needs.
    Keep OUT/ca to yourself: whoever has its key can impersonate anybody. OUT/agents, if asked for,
    is for a coordinator that agents enrol at: whoever has its key can impersonate any agent.

    A running process takes up new files without a restart, once they are copied to it: renewed
    certificates, and the list of revoked ones, crl.pem, which belongs beside every ca.pem.
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
    agent_authority: bool = Field(
        False,
        description="also make an authority that can sign agents only, in OUT/agents, and put the "
        "root's certificate, which agents need to enrol, in OUT/public",
    )
    revoke: list[str] = Field(
        [],
        description="what to revoke: all certificates issued to a role/name so "
        "far (or to authority/agents), a certificate's file, or its serial number in hexadecimal",
    )
    renew: bool = Field(False, description="replace certificates that exist")
    keep: bool = Field(False, description="leave certificates that exist as they are")


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote certs`."""
    return process.run(CertsSettings, arguments, _main)


async def _main(settings: CertsSettings) -> None:
    if settings.keep and settings.renew:
        raise ConfigError("--keep and --renew contradict each other: pass one of them")
    identities = [_identity(text) for text in settings.issue]
    for folder in (settings.out, *settings.out.parents):
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"--out: {folder} is a file: name a folder, made if there is none")
    directory = settings.out / "ca"
    if (directory / "ca.pem").exists():
        authority = CertificateAuthority.load(directory)
    elif settings.renew:
        raise IdentityError(
            f"There is no authority in {directory}, so nothing can be renewed. "
            "Name the folder that has it with --out."
        )
    else:
        authority = CertificateAuthority.create(directory)
        print(f"authority: {directory}")
    if settings.revoke:
        authority.revoke([n for what in settings.revoke for n in _serials(authority, what)])
        content = pem.read(authority.revoked)
        folders = [path.parent for path in settings.out.glob("**/ca.pem")]
        for folder in folders:
            pem.write(folder / authority.revoked.name, content, pem.PUBLIC)
        print(f"revoked: {', '.join(settings.revoke)}; copy {authority.revoked} to every process")
    if settings.agent_authority:
        agents, public = settings.out / "agents", settings.out / "public"
        if not (settings.keep and (agents / "agents.pem").exists()):
            authority.delegate_agents(agents, overwrite=settings.renew)
            print(f"agents' authority: {agents}")
        root = pem.read(directory / "ca.pem")
        pem.write_all(public, {public / "ca.pem": (root, pem.PUBLIC)}, overwrite=True)
    for identity in identities:
        target = settings.out / identity.role / identity.name
        if settings.keep and (target / "cert.pem").exists():
            continue
        authority.issue(
            identity, target, hosts=settings.hosts, days=settings.days, overwrite=settings.renew
        )
        print(f"{identity}: {target}")


def _serials(authority: CertificateAuthority, what: str) -> list[int]:
    """The serial numbers of the certificates that are meant, one at least."""
    if Path(what).is_file():
        certificate, *_ = pem.parse_certificates(pem.read(Path(what)), Path(what))
        return [certificate.serial_number]
    with contextlib.suppress(ValueError):
        return [int(what, 16)]
    issued = authority.issued_to(what)
    if not issued:
        raise IdentityError(
            f"No certificate of {what!r} is on record, so nothing was revoked. Name a role/name "
            "that this authority issued for, a certificate's file, or its serial number."
        )
    return issued


def _identity(text: str) -> Identity:
    role, _, name = text.partition("/")
    if role not in set(Role):
        raise IdentityError(
            f"{text!r} is not role/name with a role among {', '.join(Role)}, e.g. party/party-0."
        )
    return Identity(Role(role), name)
