"""What can be configured, with defaults and bounds. The reference in docs is made from this."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from trimtab.domain.readings import Unit
from trimtab.policy.units import QuantityError, parse_quantity

MAX_SOCKET_PATH_BYTES: Final = 107
"""sockaddr_un holds 108 bytes with the terminating zero."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")


def _quantity(unit: Unit) -> BeforeValidator:
    def parse(found: Any) -> float:
        try:
            return parse_quantity(found, unit)
        except QuantityError as error:
            suggestion = f" (write {error.suggestion!r})" if error.suggestion else ""
            raise ValueError(f"{error.message}{suggestion}") from error

    return BeforeValidator(parse)


def _mode(found: Any) -> Any:
    """Permissions are written as text, so that nobody reads 660 as a decimal number."""
    if isinstance(found, str) and re.fullmatch(r"0?[0-7]{3}", found):
        return int(found, 8)
    raise ValueError(f'found {found!r}; permissions are written as text, such as "0660"')


Seconds = Annotated[float, _quantity(Unit.SECONDS)]
Bytes = Annotated[int, _quantity(Unit.BYTES)]
Mode = Annotated[int, BeforeValidator(_mode)]


class Section(BaseModel):
    """Frozen, and strict about unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class SocketsConfig(Section):
    """Where the daemon listens, and who may connect."""

    folder: Path = Field(description="Folder of both sockets.")
    inference: Path = Field(description="Socket of the inference API.")
    control: Path = Field(description="Socket of the control API.")
    group: str | None = Field(None, description="Group that owns the inference socket.")
    inference_mode: Mode = Field(0o660, description="Permissions of the inference socket.")
    control_mode: Mode = Field(0o600, description="Permissions of the control socket.")

    @field_validator("inference", "control")
    @classmethod
    def _short_enough(cls, path: Path) -> Path:
        length = len(str(path).encode())
        if length > MAX_SOCKET_PATH_BYTES:
            raise ValueError(
                f"{path} has {length} bytes; a socket's path has at most {MAX_SOCKET_PATH_BYTES}"
            )
        return path


class EngineConfig(Section):
    """How workers run the engine."""

    threads: int | None = Field(
        None, ge=1, le=256, description="Engine threads; unset: all cores but one, at most 4."
    )
    decoder: Literal["auto", "generator", "kv"] = Field(
        "auto", description="Which decoder: auto takes the one with its own KV cache if it can."
    )


class LogConfig(Section):
    """Log lines on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least that is told."
    )
    format: Literal["auto", "json", "human"] = Field(
        "auto", description="auto: JSON under systemd, for people otherwise."
    )


class TcpConfig(Section):
    """The optional door for programs that can't speak over a Unix socket; loopback only."""

    enabled: bool = Field(False, description="Listen on TCP too.")
    host: Literal["127.0.0.1", "::1"] = Field("127.0.0.1", description="Loopback address.")
    port: int = Field(8417, ge=0, le=65535, description="Port; 0 takes a free one.")
    token_file: Path | None = Field(
        None, description="File with the bearer token (0600). Required if TCP is on."
    )


class OtlpConfig(Section):
    """An OpenTelemetry collector that metrics and spans are sent to."""

    endpoint: str | None = Field(
        None,
        description="Base URL of a collector (OTLP over HTTP), such as http://127.0.0.1:4318; "
        "unset: nothing is sent.",
    )
    period_s: Seconds = Field(
        60.0, alias="period", ge=1, le=3600, description="Time between two exports."
    )
    spans: bool = Field(True, description="Send a span for each request too.")

    @field_validator("endpoint")
    @classmethod
    def _is_url(cls, endpoint: str | None) -> str | None:
        if endpoint is None:
            return None
        parts = urlsplit(endpoint)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("it must be a URL such as http://127.0.0.1:4318")
        if parts.username is not None:
            raise ValueError(
                "it must not hold credentials; put them into OTEL_EXPORTER_OTLP_HEADERS"
            )
        return endpoint


class JournalConfig(Section):
    """The decision journal."""

    size_bytes: Bytes = Field(
        4 * 1024 * 1024,
        alias="size",
        ge=64 * 1024,
        le=1024**3,
        description="Both journal files together hold at most this much.",
    )


class NumberFileConfig(Section):
    """A number in a file, as the signal ``custom.NAME``."""

    path: Path = Field(description="The file; its first word is the number.")
    unit: Unit = Field(description="Unit of the signal, after scaling.")
    scale: float = Field(1.0, description="Factor, such as 0.001 for millidegrees.")
    low: float | None = Field(None, description="Least plausible value.")
    high: float | None = Field(None, description="Greatest plausible value.")
    period_s: Seconds = Field(5.0, alias="period", ge=0.1, description="How often it is read.")


class SensorsConfig(Section):
    """What is measured, and where."""

    board: str | None = Field(None, description="Board profile; unset: recognised.")
    proc_root: Path = Field(Path("/proc"), description="Where /proc is.")
    sys_root: Path = Field(Path("/sys"), description="Where /sys is.")
    custom: dict[str, NumberFileConfig] = Field(
        default_factory=dict, description="Numbers from files, by signal name."
    )

    @field_validator("custom")
    @classmethod
    def _names(cls, custom: dict[str, NumberFileConfig]) -> dict[str, NumberFileConfig]:
        for name in custom:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no signal name; use a-z, 0-9, '_', '-' and '.'")
        return custom


class ApiConfig(Section):
    """Limits of the API."""

    max_body_bytes: Bytes = Field(
        4 * 1024 * 1024,
        alias="max_body",
        ge=1024,
        le=256 * 1024 * 1024,
        description="Largest request body.",
    )
    max_header_bytes: Bytes = Field(
        32 * 1024,
        alias="max_header",
        ge=1024,
        le=1024 * 1024,
        description="Largest request head.",
    )
    max_connections: int = Field(
        256, ge=2, le=65536, description="Open connections of one socket; more get 503."
    )
    max_user_connections: int = Field(
        128, ge=1, le=65536, description="Open connections of one user to a socket; more get 429."
    )
    rate_per_second: float = Field(
        100.0,
        alias="rate",
        ge=0,
        le=1_000_000,
        description="Requests a second that a user may send to one socket in the long run; more "
        "get 429. 0: any number.",
    )
    burst: int = Field(
        200,
        ge=1,
        le=1_000_000,
        description="Requests that a user may send at once after a pause.",
    )
    read_deadline_s: Seconds = Field(
        30.0,
        alias="read_deadline",
        ge=0.05,
        le=3600,
        description="Time in which a request must have come in whole.",
    )
    write_deadline_s: Seconds = Field(
        30.0,
        alias="write_deadline",
        ge=0.05,
        le=3600,
        description="Time in which a client must take what is waiting for it.",
    )
    idle_s: Seconds = Field(
        75.0, alias="idle", ge=0.05, le=3600, description="How long a connection may be idle."
    )
    keep_alive_s: Seconds = Field(
        5.0,
        alias="keep_alive",
        ge=0.05,
        le=300,
        description="A stream that waits gets a comment this often.",
    )
    drain_s: Seconds = Field(
        10.0,
        alias="drain",
        ge=0,
        le=600,
        description="How long running streams may go on after SIGTERM.",
    )


class Config(Section):
    """The whole configuration."""

    model: str | None = Field(None, description="Id of the model to serve; unset: the only one.")
    models: tuple[Path, ...] = Field(min_length=1, description="Folders that hold models.")
    policy: str = Field("balanced", description="Name of the policy in force.")
    policies: Path = Field(description="Folder of policy files.")
    state: Path = Field(description="State directory: journal, last good policy, profiles.")
    cache: Path = Field(description="Cache directory: what can be made again.")
    tick_s: Seconds = Field(
        1.0,
        alias="tick",
        ge=0.05,
        le=60,
        description="Time between two looks at the sensors. At rest they come every 30 s.",
    )
    sockets: SocketsConfig
    engine: EngineConfig = EngineConfig()
    log: LogConfig = LogConfig()
    tcp: TcpConfig = TcpConfig()
    otlp: OtlpConfig = OtlpConfig()
    journal: JournalConfig = JournalConfig()
    sensors: SensorsConfig = SensorsConfig()
    api: ApiConfig = ApiConfig()
    users: dict[str, Literal["interactive", "background"]] = Field(
        default_factory=dict,
        description="Highest priority of a user's requests, by user name; a request may ask for "
        "a lower one.",
    )
