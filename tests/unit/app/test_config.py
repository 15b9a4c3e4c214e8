"""Settings: the file, then the environment, then flags; what nobody knows is refused."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import Field

from agent_node.settings import AgentSettings
from aggregator.coordinator.settings import CoordinatorSettings
from aggregator.coordinator.token_command import TokenSettings
from aggregator.dealer.settings import DealerSettings
from aggregator.party.settings import PartySettings
from mpc_vote import cli
from mpc_vote.app.config import Ballot, ConfigError, Engine, Method, Positive, Settings, load
from mpc_vote.argmax.registry import ENGINES
from mpc_vote.cli.certs import CertsSettings
from mpc_vote.cli.label import LabelSettings
from mpc_vote.cli.model import ModelSettings
from mpc_vote.cli.status import StatusSettings
from mpc_vote.cli.train import TrainSettings
from mpc_vote.voting.ballots import BALLOTS, KNN_COUNT

MODELS: list[type[Settings]] = [
    CertsSettings,
    LabelSettings,
    StatusSettings,
    TrainSettings,
    ModelSettings,
    CoordinatorSettings,
    PartySettings,
    DealerSettings,
    AgentSettings,
    TokenSettings,
]
PARTIES = "a=h:1,b=h:2"
# The least that each command needs.
NEEDED: dict[str, list[str]] = {
    "certs": [],
    "token": ["--data-dir=d"],
    "label": ["--certs=c", "--queries=q", "--out=o", "--classes=3"],
    "status": ["--certs=c"],
    "train": ["--certs=c"],
    "model": ["--certs=c"],
    "coordinator": ["--certs=c", "--data-dir=d", f"--parties={PARTIES}"],
    "party": ["--certs=c", "--data-dir=d", f"--peers={PARTIES}", "--dealer=h:3"],
    "dealer": ["--certs=c"],
    "agent": [
        "--certs=c",
        "--data=x",
        "--data-dir=d",
        "--coordinator=h:1",
        f"--parties={PARTIES}",
    ],
}

COMMANDS = [
    *([name] for name in (*cli._COMMANDS, *cli._WORKERS)),
    ["account", "paper"],
    ["bench", "groups"],
    ["bench", "service"],
]


class Everything(Settings):
    """Every kind of option."""

    command: ClassVar[str] = "everything"

    n: int = Field(ge=1, le=9, description="a number")
    method: Method = Field(Method.AE, description="one")
    methods: list[Method] = Field(list(Method), min_length=1, description="some")
    maybe: Method | None = Field(None, description="one or none")
    ballot: Ballot = Field(KNN_COUNT, description="of a registry")
    engines: list[Engine] = Field([], description="of another")
    share: Positive = Field(2.0, description="50 % and more")
    rates: list[Annotated[float, Field(ge=0.5, lt=100)]] = Field([0.5, 10.0], description="several")
    places: list[Path] = Field([], description="none")
    names: dict[str, str] = Field({}, description="a map")
    note: str = Field("none", description="words")
    on: bool = Field(False, description="a switch")
    count: int = Field(0, description="nothing")


every_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.command)
Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.upper().startswith("MPC_VOTE_"):
            monkeypatch.delenv(variable)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "settings.toml"
        path.write_text(text)
        return path

    return write


def run(*arguments: str) -> int:
    """The exit code of the command, as the shell sees it."""
    try:
        return cli.main(arguments)
    except SystemExit as leaving:
        assert isinstance(leaving.code, int)
        return leaving.code


class TestHelp:
    @every_model
    def test_it_exits_with_zero_and_names_every_flag(
        self, model: type[Settings], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(model.command, "--help") == 0
        out, err = capsys.readouterr()
        assert out.startswith(f"usage: mpc-vote {model.command} ")
        assert err == ""
        for name, field in model.model_fields.items():
            assert f"--{(field.alias or name).replace('_', '-')} " in out
            assert field.description is not None

    def test_the_demo_has_help_too(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("demo", "--help") == 0
        assert capsys.readouterr().out.startswith("usage: mpc-vote demo ")

    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    def test_it_shows_what_one_types(
        self, command: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(*command, "--help") == 0
        out = capsys.readouterr().out
        for internal in ("null", "None", "False", "[]", "list[", "dict[", "['"):
            assert internal not in out
        for choices in re.findall(r"\{(\S+?)\}", out):
            assert choices == choices.lower()
        _, about, *_ = out.split("\n\n")
        assert not [line for line in about.splitlines() if line.startswith(" ")]

    def test_it_tells_kinds_and_defaults_as_one_types_them(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            load(Everything, ["--help"])
        out = " ".join(capsys.readouterr().out.split())
        for line in (
            "-n INT, --n INT a number (required)",
            "--method {ae,knn} one (default: ae)",
            "--methods {ae,knn},... some (default: ae,knn)",
            "--maybe {ae,knn} one or none --ballot",
            "--ballot {one_hot,knn_frequency,knn_count,multi_label} of a registry "
            "(default: knn_count)",
            "accelerated_cascade},... of another --share",
            "--share NUMBER 50 % and more (default: 2)",
            "--rates NUMBER,... several (default: 0.5,10)",
            "--places PATH,... none --names",
            "--names NAME=VALUE,... a map --note",
            "--note TEXT words (default: none)",
            "--on, --no-on a switch --count",
            "--count INT nothing (default: 0)",
        ):
            assert line in out

    def test_the_command_lists_its_commands(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--help") == 0
        out = capsys.readouterr().out
        for model in MODELS:
            assert f"\n  {model.command} " in out

    def test_no_command_is_a_mistake(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run() == 2
        assert "usage: mpc-vote COMMAND" in capsys.readouterr().out

    def test_an_unknown_command_is_named(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("lable") == 2
        out, err = capsys.readouterr()
        assert "there is no command 'lable'; did you mean label?\n" in err
        assert out == ""

    def test_a_command_unlike_any_other_is_not_guessed(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("xyzzy") == 2
        assert "there is no command 'xyzzy'\n" in capsys.readouterr().err

    def test_the_version_is_shown(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run("--version") == 0
        assert capsys.readouterr().out.startswith("mpc-vote 0.")


class TestOrder:
    def test_file_then_environment_then_flag(
        self, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def sigma(*flags: str) -> float:
            return load(CoordinatorSettings, [*NEEDED["coordinator"], *flags]).sigma

        assert sigma() == 25.0
        path = write("sigma = 1.0")
        assert sigma(f"--config={path}") == 1.0
        monkeypatch.setenv("MPC_VOTE_COORDINATOR_SIGMA", "2.0")
        assert sigma(f"--config={path}") == 2.0
        assert sigma(f"--config={path}", "--sigma", "3.0") == 3.0

    def test_sources_add_up_over_different_settings(
        self, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write("sigma = 1.0")
        monkeypatch.setenv("MPC_VOTE_COORDINATOR_COLLUSION", "2")
        settings = load(
            CoordinatorSettings,
            [*NEEDED["coordinator"], "--config", str(path), "--delta", "1e-5"],
        )
        assert (settings.sigma, settings.collusion, settings.delta) == (1.0, 2, 1e-5)

    def test_the_environment_can_point_at_the_file(
        self, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MPC_VOTE_COORDINATOR_CONFIG", str(write("sigma = 1.0")))
        assert load(CoordinatorSettings, NEEDED["coordinator"]).sigma == 1.0

    def test_a_map_is_replaced_not_merged(
        self, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write('certs = "c"\ndata-dir = "d"\n[parties]\na = "h:1"\nb = "h:2"\n')

        def parties(*flags: str) -> dict[str, str]:
            return load(CoordinatorSettings, [f"--config={path}", *flags]).parties

        assert parties() == {"a": "h:1", "b": "h:2"}
        monkeypatch.setenv("MPC_VOTE_COORDINATOR_PARTIES", '{"e": "h:5", "f": "h:6"}')
        assert parties() == {"e": "h:5", "f": "h:6"}
        assert parties("--parties", "y=h:8,x=h:7") == {"x": "h:7", "y": "h:8"}

    def test_parties_keep_their_order(self) -> None:
        flags = [*NEEDED["coordinator"][:-1], "--parties", "z=h:1", "--parties", "a=h:2,m=h:3"]
        assert list(load(CoordinatorSettings, flags).parties) == ["z", "a", "m"]

    def test_dashes_and_underscores_are_the_same_in_the_file(self, write: Write) -> None:
        for text in ("min-sigma = 4", "min_sigma = 4"):
            path = write(text)
            given = [*NEEDED["coordinator"], f"--config={path}"]
            assert load(CoordinatorSettings, given).min_sigma == 4.0

    def test_a_setting_with_another_name_is_called_the_same_everywhere(
        self, write: Write, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        needed = NEEDED["status"]
        path = write('json = "f"')
        assert load(StatusSettings, [*needed, f"--config={path}"]).json_path == "f"
        monkeypatch.setenv("MPC_VOTE_STATUS_JSON", "e")
        assert load(StatusSettings, needed).json_path == "e"
        assert load(StatusSettings, [*needed, "--json", "-"]).json_path == "-"

    @every_model
    def test_variables_without_the_prefix_mean_nothing(
        self, model: type[Settings], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, field in model.model_fields.items():
            monkeypatch.setenv((field.alias or name).upper(), "stray")
            monkeypatch.setenv(name.upper(), "stray")
        assert "stray" not in str(load(model, NEEDED[model.command]))


class TestUnknown:
    @every_model
    def test_in_the_file(self, model: type[Settings], write: Write) -> None:
        path = write('colour = "blue"')
        with pytest.raises(ConfigError, match="colour: is not a setting of this command"):
            load(model, [*NEEDED[model.command], f"--config={path}"])

    @every_model
    def test_in_the_environment(
        self, model: type[Settings], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        variable = f"MPC_VOTE_{model.command.upper()}_COLOUR"
        monkeypatch.setenv(variable, "blue")
        with pytest.raises(ConfigError, match=f"the variable {variable} is not known; known: "):
            load(model, NEEDED[model.command])

    @every_model
    def test_as_a_flag(self, model: type[Settings], capsys: pytest.CaptureFixture[str]) -> None:
        assert run(model.command, *NEEDED[model.command], "--colour", "blue") == 2
        assert "unrecognized arguments: --colour blue" in capsys.readouterr().err

    def test_flags_are_not_guessed_from_their_beginning(
        self, write: Write, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run("coordinator", *NEEDED["coordinator"], "--conf", str(write(""))) == 2
        assert "unrecognized arguments: --conf" in capsys.readouterr().err

    def test_variables_of_another_command_are_left_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MPC_VOTE_AGENT_MIN_SIGMA", "3")
        assert load(DealerSettings, NEEDED["dealer"]).listen == "127.0.0.1:7200"


BAD: list[tuple[str, list[str], str]] = [
    ("coordinator", ["--sigma=-1"], "--sigma: must be a number above 0, not -1"),
    ("coordinator", ["--sigma=nan"], "--sigma: must be a finite number above 0, not nan"),
    ("coordinator", ["--sigma=much"], "--sigma: must be a number above 0, not 'much'"),
    ("coordinator", ["--delta=1"], "--delta: must be a number of at least 1e-12 and below 1, not"),
    ("coordinator", ["--quorum-fraction=1.5"], "--quorum-fraction: must be a number above 0 and"),
    ("coordinator", ["--answer-seconds=0"], "--answer-seconds: must be a whole number of at least"),
    ("coordinator", ["--budget-agent=0"], "--budget-agent: must be a number above 0, not 0"),
    ("coordinator", ["--listen=nowhere"], "--listen: 'nowhere' is not host:port"),
    ("coordinator", ["--listen=h:65536"], "--listen: 'h:65536' is not host:port"),
    ("coordinator", ["--listen=unix:here"], "--listen: 'unix:here' is not unix:/path"),
    ("agent", ["--enrol=unix:"], "--enrol: 'unix:' is not unix:/path"),
    ("agent", [f"--enrol=unix:/{'x' * 107}"], "--enrol: 'unix:/xxx"),
    ("coordinator", ["--log-level=loud"], "--log-level: choose one of debug, info"),
    ("status", ["--log-level=loud"], "--log-level: choose one of debug, info"),
    ("status", ["--coordinator=:1"], "--coordinator: ':1' is not host:port"),
    ("status", ["--coordinator-name=Me!"], "--coordinator-name: 'Me!' is not a name"),
    ("label", ["--ballot=zero_hot"], "--ballot: choose one of one_hot, knn_frequency, knn_count"),
    ("label", ["--classes=many"], "--classes: must be a whole number, not 'many'"),
    ("label", ["--quorum=0"], "--quorum: must be a whole number of at least 1, not 0"),
    ("certs", ["--days=0"], "--days: must be a whole number of at least 1 and at most 36500"),
    ("certs", ["--days=1000000000"], "--days: must be a whole number of at least 1 and at most"),
    ("certs", ["--issue=[x"], "--issue: can't be read: write --issue a,b for a list"),
    ("coordinator", ["--min-k=10", "--max-k=5"], "--max-k: must be at least --min-k, 10, not 5"),
    ("agent", ["--k=0"], "--k: must be a whole number of at least 1 and at most"),
    ("agent", ["--voter=guess"], "--voter: 'guess' is unknown: choose one of http, knn,"),
    ("agent", ["--ballots=one_hot,zero_hot"], "--ballots: choose one of one_hot, knn_frequency"),
    ("model", ["--version=-1"], "--version: must be a whole number of at least 0, not -1"),
]
# In a file, where a value has a kind of its own.
WRONG_KINDS: list[tuple[str, str]] = [
    ("n = 1.5", "--n: must be a whole number of at least 1 and at most 9, not 1.5"),
    ("n = 'many'", "--n: must be a whole number of at least 1 and at most 9, not 'many'"),
    ("method = 3", "--method: choose one of ae, knn (not 3)"),
    ("methods = ['ae', 'guess']", "--methods: choose one of ae, knn (not 'guess')"),
    ("ballot = 3", f"--ballot: choose one of {', '.join(BALLOTS.names())} (not 3)"),
    ("ballot = 'guess'", f"--ballot: choose one of {', '.join(BALLOTS.names())} (not 'guess')"),
    ("engines = ['table', 1]", f"--engines: choose one of {', '.join(ENGINES.names())} (not 1)"),
    ("methods = []", "--methods: is empty: name at least one"),
    ("maybe = 'guess'", "--maybe: choose one of ae, knn (not 'guess')"),
    ("share = inf", "--share: must be a finite number above 0, not inf"),
    ("share = []", "--share: must be a number above 0, not []"),
    ("rates = 3", "--rates: must be a list, not 3"),
    ("places = [3]", "--places: each must be a path, not 3"),
    ("names = 'x'", "--names: must be a map of names to values, not 'x'"),
    ("names = {a = 3}", "--names: each must be text, not 3"),
    ("note = 3", "--note: must be text, not 3"),
    ("on = 'maybe'", "--on: must be true or false, not 'maybe'"),
]
BAD_PARTIES: list[tuple[str, str]] = [
    ("a=h:1", "--peers: at least two parties are needed"),
    ("a=h:1,b=h", "--peers: 'h' is not host:port"),
    ("a=h:1,B=h:2", "--peers: 'B' is not a name"),
    ("a,b", "--peers: can't be read: write --peers"),
]


def test_addresses_may_be_sockets() -> None:
    flags = ["--enrol=unix:/run/enrol", "--parties=a=unix:/run/a,b=unix:/run/b"]
    given = [flag for flag in NEEDED["agent"] if not flag.startswith("--parties")]
    settings = load(AgentSettings, [*given, *flags])
    assert settings.enrol == "unix:/run/enrol"
    assert settings.parties == {"a": "unix:/run/a", "b": "unix:/run/b"}


class TestBadValues:
    @pytest.mark.parametrize(
        ("command", "flags", "why"), BAD, ids=[" ".join([c, *f]) for c, f, _ in BAD]
    )
    def test_get_a_sentence_that_names_the_flag(
        self, command: str, flags: list[str], why: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(command, *NEEDED[command], *flags) == 2
        out, err = capsys.readouterr()
        assert f"mpc-vote {command}: error: {why}" in err
        assert "Traceback" not in err + out

    @pytest.mark.parametrize(("text", "why"), WRONG_KINDS)
    def test_get_what_is_allowed_whatever_the_kind(self, text: str, why: str, write: Write) -> None:
        given = text if text.startswith("n =") else f"n = 1\n{text}"
        with pytest.raises(ConfigError) as caught:
            load(Everything, [f"--config={write(given)}"])
        assert str(caught.value) == why

    def test_get_a_sentence_each(self) -> None:
        with pytest.raises(ConfigError) as caught:
            load(Everything, ["--n=0", "--rates=1,fast,100", "--method=guess"])
        assert str(caught.value) == (
            "--n: must be a whole number of at least 1 and at most 9, not 0; "
            "--method: choose one of ae, knn (not 'guess'); "
            "--rates: each must be a number of at least 0.5 and below 100, not 'fast'; "
            "--rates: each must be a number of at least 0.5 and below 100, not 100"
        )

    @pytest.mark.parametrize(("parties", "why"), BAD_PARTIES)
    def test_get_a_sentence_for_parties_too(self, parties: str, why: str) -> None:
        with pytest.raises(ConfigError) as caught:
            load(PartySettings, ["--certs=c", "--data-dir=d", "--dealer=h:1", "--peers", parties])
        assert str(caught.value).startswith(why)

    def test_what_is_missing_is_named_with_its_flag(self) -> None:
        with pytest.raises(ConfigError) as caught:
            load(PartySettings, [])
        told = str(caught.value)
        for flag in ("certs", "data-dir", "peers", "dealer"):
            assert f"--{flag}: is missing: pass --{flag}, or set it in the file" in told

    def test_a_list_in_the_environment_is_json(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MPC_VOTE_CERTS_ISSUE", '["party/a"]')
        assert load(CertsSettings, []).issue == ["party/a"]
        monkeypatch.setenv("MPC_VOTE_CERTS_ISSUE", "party/a")
        with pytest.raises(ConfigError, match="MPC_VOTE_CERTS_ISSUE must be JSON"):
            load(CertsSettings, [])

    def test_a_file_that_is_missing_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"can't read the settings in .*none\.toml: No such"):
            load(CertsSettings, ["--config", str(tmp_path / "none.toml")])

    def test_a_file_that_is_no_toml_is_named(self, write: Write) -> None:
        with pytest.raises(ConfigError, match=r"settings\.toml is not valid TOML"):
            load(CertsSettings, [f"--config={write('days = = 3')}"])

    def test_settings_do_not_change(self) -> None:
        settings: Any = load(DealerSettings, NEEDED["dealer"])
        with pytest.raises(ValueError, match="frozen"):
            settings.listen = "h:1"
