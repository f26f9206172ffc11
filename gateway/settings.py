"""Declares every setting, reads them from `TOLLGATE_*` variables or the TOML file that
`TOLLGATE_CONFIG` names, and finds misspelt names.

Only `main` reads them.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from tomllib import TOMLDecodeError
from typing import Annotated, Any

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from gateway.domain.alerts.mail import MailAccount, is_mail_address, mail_server
from gateway.errors import BadUsage

PREFIX = "TOLLGATE_"
_POSTGRES = ("postgresql://", "postgres://", "postgresql+psycopg://")
# By pydantic's type of error.
_NO_NUMBER = {"int": "a whole number", "float": "a number", "bool": "true or false"}
_BOUNDS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
}
# Read by other parts.
_OTHER = frozenset({"CONFIG", "DEBUG", "KEY", "OPERATOR", "REPORTS_URL", "DASHBOARD_SIGN_IN"})


class Settings(BaseSettings):
    """Names are the variables without the prefix, in lower case. Sizes are bytes, times seconds."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    home: Path = Field(
        Path("~/.tollgate"), description="Everything Tollgate keeps on this machine."
    )
    database_url: str | None = Field(
        None, description="Your Postgres; unset means the embedded one in the home."
    )
    gateway_database_url: str | None = Field(
        None, description="Postgres for `serve`, if another login."
    )
    admin_database_url: str | None = Field(
        None, description="Postgres for administration, if another login."
    )
    finance_database_url: str | None = Field(
        None, description="Postgres for finance's approvals and months, if not in the home."
    )
    reports_database_url: str | None = Field(
        None, description="Postgres for reports and dashboard, if another login."
    )
    pepper_file: Path | None = Field(
        None, description="The secret behind API key digests; default HOME/pepper."
    )

    host: str = Field("127.0.0.1", description="Address the gateway listens on.")
    port: int = Field(8080, ge=1, le=65535, description="Port of the gateway.")
    metrics_host: str = Field("127.0.0.1", description="Address of the /metrics listener.")
    metrics_port: int = Field(9464, ge=1, le=65535, description="Port of the /metrics listener.")
    metrics_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Names that /metrics answers to, besides this machine's."
    )
    dashboard_host: str = Field("127.0.0.1", description="Address the dashboard listens on.")
    dashboard_port: int = Field(8501, ge=1, le=65535, description="Port of the dashboard.")
    dashboard_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Names that the dashboard answers to, besides this machine's."
    )
    engine_port: int = Field(8001, ge=1, le=65535, description="Port of the vLLM that `up` starts.")
    engine_home: Path | None = Field(
        None, description="Engine environment and models; default HOME/engine."
    )

    region: str = Field(
        "unknown",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="The gateway's own region, by its name in the policy; rules with "
        "gateway_regions check it.",
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Host names the gateway answers to; empty means any."
    )
    max_body_bytes: int = Field(10 * 2**20, ge=1024, description="Largest request body.")
    max_head_bytes: int = Field(
        32 * 2**10, ge=1024, description="Largest head of a request: its line and headers."
    )
    max_header_fields: int = Field(100, ge=10, description="Most headers of a request.")
    max_target_bytes: int = Field(
        8 * 2**10, ge=256, description="Longest target of a request: path and query."
    )
    head_s: float = Field(10.0, gt=0, description="Longest time until a request's head is whole.")
    body_grace_s: float = Field(
        10.0, ge=0, description="Time after the head in which a body may come at any rate."
    )
    body_bytes_per_s: int = Field(
        1024, ge=0, description="Least rate of a request's body after that time."
    )
    body_s: float = Field(120.0, gt=0, description="Longest time until a request's body is whole.")
    write_s: float = Field(60.0, gt=0, description="How long a caller may leave an answer unread.")
    max_connections: int = Field(
        10_000,
        ge=1,
        description="Most connections of callers to one process; at most 80 % of its descriptors.",
    )
    max_streams: int = Field(2000, ge=1, description="Most requests in flight in one process.")
    max_attempts: int = Field(3, ge=1, le=10, description="Most upstream attempts for one request.")
    shed_lag_s: float = Field(
        0.1,
        gt=0,
        description="How late the event loop may be at its turns before new requests are refused.",
    )
    refresh_s: float = Field(
        2.0, gt=0, le=4, description="Longest time between two looks for new policy and keys."
    )
    write_every_s: float = Field(
        0.2, gt=0, description="Longest time an event waits for the writer."
    )
    journal_dir: Path | None = Field(
        None, description="Folder of this machine's journals of attempts; default HOME/journal."
    )
    journal_max_bytes: int = Field(
        256 * 2**20, ge=32 * 2**20, description="Most space of one worker's journal."
    )
    journal_fsync: bool = Field(
        True, description="False: a power cut may lose the last moments (a crash may not)."
    )
    abandoned_answers: int = Field(
        64, ge=0, description="Most answers read on at once after their callers left."
    )
    abandoned_s: float = Field(120.0, ge=0, description="Longest time one of them is read on.")
    abandoned_events: int = Field(
        16384, ge=0, description="Most events one of them is read on for (a token or so each)."
    )
    tokenizers: Annotated[dict[str, Path], NoDecode] = Field(
        {},
        description='A tokenizer.json by upstream model, as {"m-1": "/path"}: it counts cut '
        "streams, and its normalizer bounds holds.",
    )
    unknown_hold_ttl_s: float = Field(
        86_400, gt=0, description="How long an unknown attempt counts at its hold."
    )
    journal_lost_after_s: float = Field(
        86_400,
        gt=0,
        description="Age at which a silent journal is given up and its leased money is booked.",
    )
    outage_s: float = Field(
        900.0,
        ge=600,
        description="How long known keys and the last policy serve while Postgres is away.",
    )
    lease_s: float = Field(
        900.0, gt=0, description="How long a worker spends from leased money without Postgres."
    )
    budget_wait_s: float = Field(
        0.05,
        gt=0,
        le=1,
        description="How long a request waits for Postgres if its budget has too little leased "
        "here.",
    )
    smtp_url: str | None = Field(
        None, description="Mail server of alerts, smtp[s]://USER@HOST:PORT; needs SMTP_FROM."
    )
    smtp_password_file: Path | None = Field(
        None, description="The password of the mail server's user, read at each mail."
    )
    smtp_from: str | None = Field(None, description="Address that alerts are mailed from.")
    drain_s: float = Field(
        25.0, ge=0, description="Time that live requests get to finish at shutdown."
    )
    log_level: str = Field(
        "info", pattern="^(debug|info|warning|error)$", description="Least severe level logged."
    )

    @field_validator(
        "database_url",
        "gateway_database_url",
        "admin_database_url",
        "finance_database_url",
        "reports_database_url",
    )
    @classmethod
    def _checked_database_url(cls, url: str | None) -> str | None:
        """Return a database URL unchanged if it is unset or a Postgres address. Raises `ValueError`
        otherwise.
        """
        if url is not None and not url.startswith(_POSTGRES):
            given = (
                "it is empty: set it, or unset it to use the embedded Postgres"
                if not url
                else "got another scheme"
            )
            raise ValueError(
                f"a database URL looks like postgresql://user:password@host:5432/tollgate; {given}"
            )
        return url

    @field_validator("smtp_url", "smtp_from", "smtp_password_file", mode="before")
    @classmethod
    def _unset_if_empty(cls, value: object) -> object:
        """Return None for an empty text: a deployment's template always sets these variables."""
        return None if value == "" else value

    @field_validator("smtp_url")
    @classmethod
    def _checked_smtp_url(cls, url: str | None) -> str | None:
        """Return the mail server's URL unchanged. Raises `ValueError` without quoting it."""
        if url is not None:
            mail_server(url)
        return url

    @field_validator("smtp_from")
    @classmethod
    def _checked_smtp_from(cls, address: str | None) -> str | None:
        """Return the sender's address unchanged. Raises `ValueError` unless it is a plain one."""
        if address is not None and not is_mail_address(address):
            raise ValueError("write a plain address such as tollgate@example.com")
        return address

    @field_validator(
        "metrics_hosts", "dashboard_hosts", "allowed_hosts", "tokenizers", mode="before"
    )
    @classmethod
    def _from_json(cls, value: object, field: ValidationInfo) -> object:
        """Parse the JSON of a list or table in a variable; a settings file has real lists and
        tables.
        """
        if not isinstance(value, str):
            return value
        kind, example = (
            (dict, '{"m-1": "/path"}')
            if field.field_name == "tokenizers"
            else (list, '["a.example"]')
        )
        try:
            decoded = json.loads(value)
        except ValueError:
            decoded = None
        if isinstance(decoded, kind):
            return decoded
        raise ValueError(f"{value!r} is not valid: write JSON, for example {example}")

    @property
    def home_path(self) -> Path:
        """Return Tollgate's home folder as an absolute path."""
        return _absolute(self.home)

    @property
    def pepper_path(self) -> Path:
        """Return the path of the file with the pepper, the secret behind API key digests."""
        return _absolute(self.pepper_file or self.home_path / "pepper")

    @property
    def journal_path(self) -> Path:
        """Return the folder of this machine's journals."""
        return _absolute(self.journal_dir or self.home_path / "journal")

    @property
    def mail_account(self) -> MailAccount | None:
        """Return the account that mails alerts, None without one."""
        if self.smtp_url is None or self.smtp_from is None:
            return None
        path = self.smtp_password_file
        return MailAccount(
            server=mail_server(self.smtp_url),
            sender=self.smtp_from,
            password=None if path is None else f"file:{_absolute(path)}",
        )

    @property
    def engine_home_path(self) -> Path:
        """Return the folder of the engine's environment and models."""
        return _absolute(self.engine_home or self.home_path / "engine")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of settings in order: variables override the file."""
        config = os.environ.get(PREFIX + "CONFIG")
        file = (
            (TomlConfigSettingsSource(settings_cls, Path(config).expanduser()),) if config else ()
        )
        return (init_settings, env_settings, *file)


def read() -> Settings:
    """Read all settings of the process. Raises `BadUsage` with the variable and its accepted
    values.
    """
    config = os.environ.get(PREFIX + "CONFIG")
    if config and not Path(config).expanduser().is_file():
        raise BadUsage(f"TOLLGATE_CONFIG names {config}, which is not a file.")
    try:
        settings = Settings()
    except (OSError, TOMLDecodeError, UnicodeDecodeError) as broken:
        raise BadUsage(
            f"The file that TOLLGATE_CONFIG names, {config}, cannot be read as TOML: {broken}."
        ) from None
    except ValidationError as broken:
        problems = "; ".join(_sentence(error) for error in broken.errors())
        raise BadUsage(f"A setting is wrong. {problems}.") from None
    _check_mail(settings)
    return settings


def _absolute(path: Path) -> Path:
    """Return the absolute path of a setting. Raises `BadUsage` for `~` of a user without a home."""
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise BadUsage(
            f"{path} is below a home, and this user has none (HOME is not set). Set TOLLGATE_HOME "
            "to a folder of this user, and write the paths of other settings in full."
        ) from None


def _check_mail(settings: Settings) -> None:
    """Raise `BadUsage` if only a part of the mail server's settings is set."""
    if settings.smtp_url is None:
        return
    account = settings.mail_account
    if account is None:
        raise BadUsage(
            "TOLLGATE_SMTP_URL is set without TOLLGATE_SMTP_FROM, the address that alerts are "
            "mailed from. Set both."
        )
    if account.server.user is not None and account.password is None:
        raise BadUsage(
            "TOLLGATE_SMTP_URL names a user, and TOLLGATE_SMTP_PASSWORD_FILE is not set. Set it to "
            "the path of a file with the password."
        )


def _sentence(error: Mapping[str, Any]) -> str:
    """Return a sentence about the first wrong setting: its variable, its value and its accepted
    values.
    """
    name, kind, given = str(error["loc"][0]), error["type"], repr(error["input"])
    default = Settings.model_fields[name].default
    example = f", for example {str(default).lower()}" if default not in (None, "") else ""
    noun = _NO_NUMBER.get(kind.split("_")[0])
    if kind == "value_error":
        problem = str(error["ctx"]["error"])
    elif noun is not None:
        problem = f"{given} is not {noun}{example}"
    elif kind in _BOUNDS:
        word, bound = _BOUNDS[kind]
        problem = f"{given} is out of range; it takes {word} {error['ctx'][bound]}{example}"
    elif kind == "string_pattern_mismatch":
        problem = f"{given} does not fit {error['ctx']['pattern']}{example}"
    else:
        problem = error["msg"]
    return f"{PREFIX}{name.upper()}: {problem}"


def misspelt(environment: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each environment variable that is no setting but resembles one."""
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    for variable in sorted(environment):
        if (
            not variable.startswith(PREFIX)
            or variable in known
            or variable.removeprefix(PREFIX) in _OTHER
        ):
            continue
        near = get_close_matches(variable, known, n=1, cutoff=0.85)
        if near:
            yield f"{variable} is not a setting and is ignored; did you mean {near[0]}?"


def unknown_in_file(config: str | None) -> Iterator[str]:
    """Yield a sentence for each name in the file of settings that is none; `read` reports a file
    that cannot be read.
    """
    names: Iterable[str] = ()
    with suppress(OSError, TOMLDecodeError, UnicodeDecodeError):
        names = tomllib.loads(Path(config or os.devnull).expanduser().read_text("utf-8"))
    for name in names:
        if name not in Settings.model_fields:
            near = get_close_matches(name, Settings.model_fields, n=1)
            advice = f"; did you mean {near[0]}?" if near else "."
            yield f"'{name}' in {config} is not a setting and is ignored{advice}"
