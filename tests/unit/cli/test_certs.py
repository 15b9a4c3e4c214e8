"""`mpc-vote certs` makes what every role needs, and never replaces a key by accident."""

from __future__ import annotations

import datetime as dt
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from mpc_vote import cli
from mpc_vote.pki.identity import Credentials, Identity, IdentityError, Role

Certs = Callable[..., int]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "certs"


@pytest.fixture
def certs(out: Path) -> Certs:
    def run(*arguments: str) -> int:
        return cli.main(["certs", "--out", str(out), *arguments])

    return run


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def certificate(folder: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / "cert.pem").read_bytes())


def test_an_authority_and_a_folder_per_identity(
    certs: Certs, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs("--issue", "party/party-0,agent/clinic", "--issue", "dealer/dealer") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"authority: {out}/ca",
        f"party/party-0: {out}/party/party-0",
        f"agent/clinic: {out}/agent/clinic",
        f"dealer/dealer: {out}/dealer/dealer",
    ]
    for role, name in ((Role.PARTY, "party-0"), (Role.AGENT, "clinic"), (Role.DEALER, "dealer")):
        credentials = Credentials.load(out / role / name, role)
        assert credentials.identity == Identity(role, name)


def test_every_role_can_be_issued_for(certs: Certs, out: Path) -> None:
    assert certs("--issue", ",".join(f"{role}/x" for role in Role)) == 0
    for role in Role:
        assert Credentials.load(out / role / "x", role).identity.name == "x"


def test_the_authority_alone_when_nobody_is_named(certs: Certs, out: Path) -> None:
    assert certs() == 0
    assert sorted(path.name for path in files(out)) == ["ca-key.pem", "ca.pem"]


def test_keys_are_for_their_owner_only(certs: Certs, out: Path) -> None:
    certs("--issue", "party/a")
    keys = list(out.rglob("*key.pem"))
    assert len(keys) == 2
    for key in keys:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_the_key_of_the_authority_goes_to_nobody(certs: Certs, out: Path) -> None:
    certs("--issue", "party/a")
    assert sorted(p.name for p in (out / "party" / "a").iterdir()) == [
        "ca.pem",
        "cert.pem",
        "key.pem",
    ]


def test_a_second_call_uses_the_same_authority(certs: Certs, out: Path) -> None:
    certs("--issue", "party/a")
    certs("--issue", "agent/b")
    authority = (out / "ca" / "ca.pem").read_bytes()
    for folder in (out / "party" / "a", out / "agent" / "b"):
        assert (folder / "ca.pem").read_bytes() == authority


def test_what_exists_is_not_overwritten(
    certs: Certs, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certs("--issue", "party/a")
    before = files(out)
    assert certs("--issue", "party/a") == 1
    assert "Nothing was written" in capsys.readouterr().err
    assert files(out) == before


def test_renewing_replaces_key_and_certificate_but_not_the_authority(
    certs: Certs, out: Path
) -> None:
    certs("--issue", "party/a")
    before = files(out)
    assert certs("--issue", "party/a", "--renew") == 0
    after = files(out)
    replaced = {path for path in before if before[path] != after[path]}
    assert replaced == {out / "party" / "a" / "cert.pem", out / "party" / "a" / "key.pem"}
    assert Credentials.load(out / "party" / "a", Role.PARTY).identity.name == "a"


def test_days_and_hosts_go_into_the_certificate(certs: Certs, out: Path) -> None:
    certs("--issue", "party/a", "--days", "7", "--hosts", "vote.example,10.0.0.1")
    made = certificate(out / "party" / "a")
    assert made.not_valid_after_utc - made.not_valid_before_utc == dt.timedelta(days=7)
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "vote.example" in names.get_values_for_type(x509.DNSName)
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hospital/a", "'hospital/a' is not role/name with a role among coordinator, party"),
        ("party", "'' can't be a name"),
        ("party/", "'' can't be a name"),
        ("party/A b", "'A b' can't be a name"),
        ("party/a/b", "'a/b' can't be a name"),
        ("/a", "'/a' is not role/name"),
    ],
)
def test_what_is_no_role_and_name_is_told_before_anything_is_made(
    certs: Certs, out: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    assert certs("--issue", "party/fine", "--issue", text) == 1
    err = capsys.readouterr().err
    assert err.startswith("mpc-vote certs: error: ")
    assert why in err
    assert not out.exists()


def test_a_certificate_of_another_authority_is_noticed(certs: Certs, out: Path) -> None:
    certs("--issue", "party/a,party/b")
    other = out.parent / "other"
    cli.main(["certs", "--out", str(other)])
    (out / "party" / "a" / "ca.pem").write_bytes((other / "ca" / "ca.pem").read_bytes())
    with pytest.raises(IdentityError, match="was not issued by the authority"):
        Credentials.load(out / "party" / "a", Role.PARTY)
    assert Credentials.load(out / "party" / "b", Role.PARTY).identity.name == "b"


def test_an_agents_authority_is_made_beside_when_asked_for(
    certs: Certs, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certs("--agent-authority") == 0
    assert f"agents' authority: {out}/agents" in capsys.readouterr().out
    assert sorted(path.name for path in (out / "agents").iterdir()) == [
        "agents-key.pem",
        "agents.pem",
        "ca.pem",
    ]
    before = files(out)
    assert certs("--agent-authority") == 1
    assert "Nothing was written" in capsys.readouterr().err
    assert files(out) == before
    assert certs("--agent-authority", "--renew") == 0
    changed = {path.name for path in before if before[path] != path.read_bytes()}
    assert changed == {"agents-key.pem", "agents.pem"}
    assert (out / "public" / "ca.pem").read_bytes() == (out / "ca" / "ca.pem").read_bytes()


def test_what_exists_is_kept_when_asked_and_the_rest_is_made(certs: Certs, out: Path) -> None:
    certs("--issue", "party/a", "--agent-authority")
    before = files(out)
    assert certs("--issue", "party/a,party/b", "--agent-authority", "--keep") == 0
    after = files(out)
    assert {path: after[path] for path in before} == before
    assert Credentials.load(out / "party" / "b", Role.PARTY).identity.name == "b"
    assert certs("--keep", "--renew") == 2


def test_nothing_is_renewed_where_there_is_no_authority(
    certs: Certs, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new root that nobody trusts would be made without a word."""
    assert certs("--issue", "party/a", "--renew") == 1
    assert "There is no authority" in capsys.readouterr().err
    assert not (out / "ca").exists()


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_in_the_place_of_the_folder_is_told_as_one(
    below: str, certs: Certs, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out.write_text("a file")
    assert cli.main(["certs", "--out", str(out / below)]) == 2
    assert f"--out: {out} is a file: name a folder" in capsys.readouterr().err
