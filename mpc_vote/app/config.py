"""One settings model per command: a TOML file, then the environment, then flags; unknown keys
refused.

A command's model names its flags. `--config FILE` points at the file; variables are called
`MPC_VOTE_<COMMAND>_<KEY>`. Secrets are never settings: keys stay in files that settings point at.
"""

from __future__ import annotations

import enum
import inspect
import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import core_schema
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from mpc_vote.app.options import Options
from mpc_vote.argmax.registry import ENGINES, EngineKind
from mpc_vote.pki.identity import NAME_PATTERN
from mpc_vote.privacy.accountant import MIN_DELTA
from mpc_vote.registry import Registry
from mpc_vote.voting.ballots import BALLOTS, BallotKind


class Method(enum.StrEnum):
    """How an agent votes: with a local model (AE-DPFL) or its nearest neighbours (kNN-DPFL)."""

    AE = "ae"
    KNN = "knn"


_UNIX = "unix:"
_MAX_SOCKET_PATH = 107


class ConfigError(Exception):
    """Settings that can't be used, with a sentence per mistake."""


def check_address(value: str) -> str:
    """A host and port, or a Unix socket's absolute path, as gRPC takes it."""
    if value.startswith(_UNIX):
        path = value.removeprefix(_UNIX)
        if not path.startswith("/") or len(os.fsencode(path)) > _MAX_SOCKET_PATH:
            raise ValueError(
                f"{value!r} is not unix:/path, absolute and of at most {_MAX_SOCKET_PATH} bytes"
            )
        return value
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{value!r} is not host:port with a port from 0 to 65535, or unix:/path")
    return value


def _parties(value: dict[str, str]) -> dict[str, str]:
    if len(value) < 2:
        raise ValueError("at least two parties are needed, as name=host:port")
    for name in value:
        _name(name)
    return {name: check_address(address) for name, address in value.items()}


def _name(value: str) -> str:
    if not NAME_PATTERN.fullmatch(value):
        raise ValueError(f"{value!r} is not a name: use lower-case letters, digits and dashes")
    return value


class _Chosen:
    """A setting whose value is chosen by name from a registry."""

    def __init__(self, registry: Registry[Any]) -> None:
        self._registry = registry

    def __get_pydantic_core_schema__(self, *_: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._choose,
            serialization=core_schema.plain_serializer_function_ser_schema(lambda one: one.name),
        )

    def __get_pydantic_json_schema__(self, *_: Any) -> dict[str, Any]:
        return {"type": "string", "enum": self._registry.names()}

    def _choose(self, value: Any) -> Any:
        try:
            return self._registry.chosen(value)
        except ValueError as error:
            names = ", ".join(self._registry.names())
            raise ValueError(f"choose one of {names} (not {value!r})") from error


Ballot = Annotated[BallotKind, _Chosen(BALLOTS)]
Engine = Annotated[EngineKind, _Chosen(ENGINES)]
Address = Annotated[str, AfterValidator(check_address)]
Name = Annotated[str, AfterValidator(_name)]
LogLevel = Literal["debug", "info", "warning", "error"]
Parties = Annotated[dict[str, str], AfterValidator(_parties)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Delta = Annotated[float, Field(ge=MIN_DELTA, lt=1)]


class Settings(BaseSettings):
    """What every command's settings share."""

    command: ClassVar[str]

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        nested_model_default_partial_update=False,
    )

    config: Path | None = Field(None, description="TOML file with any of these settings")
    log_level: LogLevel = Field(
        "info", description="debug, info, warning or error; to standard error"
    )


class RoleSettings(Settings):
    """What every process of the service has."""

    certs: Path = Field(description="folder with ca.pem, cert.pem and key.pem of this process")


S = TypeVar("S", bound=Settings)


class _Whole(PydanticBaseSettingsSource):
    """A source whose settings are taken whole or not at all: maps are replaced, never merged."""

    def __init__(self, source: PydanticBaseSettingsSource) -> None:
        super().__init__(source.settings_cls)
        self._source = source

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._source.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        given = self._source()
        return {key: value for key, value in given.items() if key not in self.current_state}


def load(model: type[S], arguments: Sequence[str]) -> S:
    """The settings of a command from file, environment and flags; flags win."""
    prefix = f"MPC_VOTE_{model.command.upper()}_"
    fields = {field.alias or name for name, field in model.model_fields.items()}
    known = {prefix + field.upper() for field in fields}
    for variable in os.environ:
        if variable.startswith(prefix) and variable not in known:
            raise ConfigError(
                f"the variable {variable} is not known; known: {', '.join(sorted(known))}"
            )

    path = _config_path(arguments) or os.environ.get(f"{prefix}CONFIG")
    from_file = _read_toml(Path(path)) if path else {}
    # Before pydantic, which takes some names for options of its own.
    if unknown := [key.replace("_", "-") for key in from_file if key not in fields]:
        raise ConfigError("; ".join(f"{key}: is not a setting of this command" for key in unknown))

    class Bound(model):  # type: ignore[valid-type,misc]
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: Any, init_settings: Any, env_settings: Any, **_: Any
        ) -> tuple[Any, ...]:
            return (_Whole(env_settings), _Whole(init_settings))

    Bound.__name__ = model.__name__
    Bound.__doc__ = inspect.cleandoc(model.__doc__ or "")
    Bound.model_config["env_prefix"] = prefix
    Bound.model_config["env_prefix_target"] = "all"
    options = Options(model)
    source: CliSettingsSource[Any] = CliSettingsSource(
        Bound,
        cli_prog_name=f"mpc-vote {model.command}",
        cli_exit_on_error=True,
        add_argument_method=options.add,
    )
    try:
        settings: S = CliApp.run(
            Bound, cli_args=list(arguments), cli_settings_source=source, **from_file
        )
    except ValidationError as error:
        raise ConfigError(options.explain(error)) from error
    except SettingsError as error:
        raise ConfigError(_explain_form(error, prefix)) from error
    return settings


def _config_path(arguments: Sequence[str]) -> str | None:
    for position, argument in enumerate(arguments):
        if argument.startswith("--config="):
            return argument.removeprefix("--config=")
        if argument == "--config" and position + 1 < len(arguments):
            return arguments[position + 1]
    return None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"can't read the settings in {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return {key.replace("-", "_"): value for key, value in content.items()}


def _explain_form(error: SettingsError, prefix: str) -> str:
    """What to write for a list or a map whose text could not be taken apart."""
    found = re.search(r'for (?:field )?"?(\w+)', str(error))
    name = found[1] if found else "settings"
    if "EnvSettingsSource" in str(error):
        example = '["a", "b"] or {"name": "value"}'
        return f"the variable {prefix}{name.upper()} must be JSON, such as {example}"
    flag = name.replace("_", "-")
    return (
        f"--{flag}: can't be read: write --{flag} a,b for a list, name=value,name=value for a map"
    )
