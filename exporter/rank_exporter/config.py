"""Typed settings. This module alone reads the environment, and only when it is asked to."""

from __future__ import annotations

import difflib
import os
import re
import socket
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from .errors import SettingError
from .identity import Identity, detect

__all__ = ["DEFAULT_PORT", "AgentSettings", "Settings", "agent_settings", "default_directory", "settings"]

DEFAULT_PORT: Final = 10911
PORTS_TRIED: Final = 17
"""The port asked for, and the next sixteen where a stranger holds it."""

DEFAULT_STEP_LOG_BYTES: Final = 1 << 30

_PREFIX: Final = "RANK_EXPORTER_"
_NAMES: Final = frozenset(
    {
        *("RUN", "HOST", "DIR", "SERVE", "PORT", "LISTEN_ADDRESS", "LINGER_SECONDS", "FILE_SD_DIR"),
        *("SKEW_BUDGET_RATIO", "STEP_LOG_DIR", "STEP_LOG_BYTES", "WEB_CONFIG_FILE", "SAMPLE_IDS"),
        *("SAMPLE_IDS_DIR", "BUCKET_TIMING"),
    }
)
# A Kubernetes Service named rank-exporter puts RANK_EXPORTER_SERVICE_HOST, RANK_EXPORTER_PORT=tcp://… and the like
# into every pod of its namespace. They are not ours.
_SERVICE_LINK: Final = re.compile(r"(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?)$")
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What an agent needs. ``linger_seconds`` None: twice the interval at which it is scraped. ``step_log_dir``: where
    step records are kept beyond the job, ``step_log_bytes`` of them at most."""

    directory: Path
    host: str
    port: int = DEFAULT_PORT
    listen_address: str = ""
    linger_seconds: float | None = None
    file_sd_dir: Path | None = None
    web_config_file: Path | None = None
    step_log_dir: Path | None = None
    step_log_bytes: int = DEFAULT_STEP_LOG_BYTES
    until_idle: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise SettingError(f"port is {self.port}: give 1 to 65535, or 0 for any free port")
        if self.linger_seconds is not None and not 0 <= self.linger_seconds <= 3600:
            raise SettingError(f"linger_seconds is {self.linger_seconds:g}: give 0 to 3600")
        if self.web_config_file is not None and not self.web_config_file.is_file():
            raise SettingError(f"web_config_file is {self.web_config_file}, and there is no such file: give its path")
        if self.step_log_bytes < 1:
            raise SettingError(f"step_log_bytes is {self.step_log_bytes}: give a number of bytes above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a training process needs; everything is checked when it is built, before the first step.

    ``sample_ids``: what samples are identified by; ``sample_ids_dir``: where their identifiers are written to.
    ``bucket_timing``: time the gradient buckets of every DistributedDataParallel that is watched.
    """

    identity: Identity
    agent: AgentSettings
    serve: Literal["auto", "off"] = "auto"
    skew_budget_ratio: float = 0.10
    sample_ids: str = "auto"
    sample_ids_dir: Path | None = None
    bucket_timing: bool = False

    def __post_init__(self) -> None:
        if self.serve not in ("auto", "off"):
            raise SettingError(f"serve is {self.serve!r}: give 'auto', or 'off' where a sidecar serves")
        if not 0 < self.skew_budget_ratio <= 10:
            raise SettingError(
                f"skew_budget_ratio is {self.skew_budget_ratio:g}: give a share of the step above 0, such as 0.10"
            )
        if self.sample_ids not in ("auto", "off") and (
            not self.sample_ids.startswith("key:") or self.sample_ids == "key:"
        ):
            raise SettingError(
                f"sample_ids is {self.sample_ids!r}: give 'auto' for the sampler's indices, 'key:NAME' for what "
                "batches have under NAME, or 'off'"
            )
        if self.sample_ids_dir is not None and (self.sample_ids == "off" or self.sample_ids_dir.is_file()):
            why = "sample_ids is 'off'" if self.sample_ids == "off" else "it is a file"
            raise SettingError(f"sample_ids_dir is {self.sample_ids_dir}, but {why}: give a directory, or neither")


def default_directory() -> Path:
    """Where this user's ranks keep their segments: in memory where the system offers that."""
    memory = Path("/dev/shm")  # noqa: S108 - the directory below it is created 0700 and its owner is checked
    parent = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    return parent / f"rank-exporter-{os.getuid()}"


def _own_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables RANK_EXPORTER_*, without the prefix. An unknown one is a misspelling: SettingError."""
    found: dict[str, str] = {}
    for variable, value in environ.items():
        if not variable.startswith(_PREFIX):
            continue
        name = variable.removeprefix(_PREFIX)
        if _SERVICE_LINK.match(name) or (name == "PORT" and _SERVICE_URL.match(value)):
            continue
        if name not in _NAMES:
            near = difflib.get_close_matches(name, sorted(_NAMES), n=1)
            remedy = f"did you mean {_PREFIX}{near[0]}?" if near else f"known are {', '.join(sorted(_NAMES))}"
            raise SettingError(f"{variable} is set to {value!r}, but there is no such setting: {remedy}")
        if value:
            found[name] = value
    return found


def _value(given: T | None, own: Mapping[str, str], name: str, parse: Callable[[str], T], default: T) -> T:
    if given is not None:
        return given
    text = own.get(name)
    if text is None:
        return default
    try:
        return parse(text)
    except ValueError:
        kind = "whole number" if parse is int else "number"
        raise SettingError(f"{_PREFIX}{name} is {text!r}: give a {kind}") from None


def agent_settings(
    environ: Mapping[str, str] | None = None,
    *,
    directory: str | os.PathLike[str] | None = None,
    host: str | None = None,
    port: int | None = None,
    listen_address: str | None = None,
    linger_seconds: float | None = None,
    file_sd_dir: str | os.PathLike[str] | None = None,
    web_config_file: str | os.PathLike[str] | None = None,
    step_log_dir: str | os.PathLike[str] | None = None,
    step_log_bytes: int | None = None,
    until_idle: bool = False,
) -> AgentSettings:
    """Settings of an agent: each from its argument, else RANK_EXPORTER_*, else the default. Raises SettingError."""
    environ = os.environ if environ is None else environ
    own = _own_variables(environ)
    chosen = directory or own.get("DIR")
    file_sd = file_sd_dir or own.get("FILE_SD_DIR")
    web_config = web_config_file or own.get("WEB_CONFIG_FILE")
    step_log = step_log_dir or own.get("STEP_LOG_DIR")
    return AgentSettings(
        directory=Path(chosen) if chosen else default_directory(),
        host=host or own.get("HOST") or environ.get("NODE_NAME") or socket.gethostname(),
        port=_value(port, own, "PORT", int, DEFAULT_PORT),
        listen_address=_value(listen_address, own, "LISTEN_ADDRESS", str, ""),
        linger_seconds=_value(linger_seconds, own, "LINGER_SECONDS", float, None),
        file_sd_dir=Path(file_sd) if file_sd else None,
        web_config_file=Path(web_config) if web_config else None,
        step_log_dir=Path(step_log) if step_log else None,
        step_log_bytes=_value(step_log_bytes, own, "STEP_LOG_BYTES", int, DEFAULT_STEP_LOG_BYTES),
        until_idle=until_idle,
    )


def settings(
    environ: Mapping[str, str] | None = None,
    *,
    ranked: Mapping[str, str] | None = None,
    run: str | None = None,
    rank: int | None = None,
    local_rank: int | None = None,
    world_size: int | None = None,
    host: str | None = None,
    directory: str | os.PathLike[str] | None = None,
    serve: Literal["auto", "off"] | None = None,
    port: int | None = None,
    listen_address: str | None = None,
    linger_seconds: float | None = None,
    file_sd_dir: str | os.PathLike[str] | None = None,
    step_log_dir: str | os.PathLike[str] | None = None,
    step_log_bytes: int | None = None,
    skew_budget_ratio: float | None = None,
    sample_ids: str | None = None,
    sample_ids_dir: str | os.PathLike[str] | None = None,
    bucket_timing: bool | None = None,
) -> Settings:
    """Settings of a training process: each from its argument, else from RANK_EXPORTER_*, else from the launcher's
    variables (see identity.detect), else the default. ``ranked``: launcher's variables that stand in where there is no
    RANK; its WORLD_SIZE then goes before the environment's. Raises SettingError, in one line."""
    environ = os.environ if environ is None else environ
    if ranked and not environ.get("RANK"):
        together = ("RANK", "WORLD_SIZE")
        told = {name: value for name, value in ranked.items() if name in together or not environ.get(name)}
        environ = {**environ, **told}
    own = _own_variables(environ)
    ids_dir = sample_ids_dir or own.get("SAMPLE_IDS_DIR")
    agent = agent_settings(
        environ,
        directory=directory,
        host=host,
        port=port,
        listen_address=listen_address,
        linger_seconds=linger_seconds,
        file_sd_dir=file_sd_dir,
        step_log_dir=step_log_dir,
        step_log_bytes=step_log_bytes,
        until_idle=True,
    )
    return Settings(
        identity=detect(
            environ,
            host=agent.host,
            pid=os.getpid(),
            run=run or own.get("RUN"),
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
        ),
        agent=agent,
        serve=_value(serve, own, "SERVE", _serve, "auto"),
        skew_budget_ratio=_value(skew_budget_ratio, own, "SKEW_BUDGET_RATIO", float, 0.10),
        sample_ids=_value(sample_ids, own, "SAMPLE_IDS", str, "auto"),
        sample_ids_dir=Path(ids_dir) if ids_dir else None,
        bucket_timing=_value(bucket_timing, own, "BUCKET_TIMING", _switch, False),
    )


def _serve(text: str) -> Literal["auto", "off"]:
    if text == "auto":
        return "auto"
    if text == "off":
        return "off"
    raise SettingError(f"{_PREFIX}SERVE is {text!r}: give 'auto', or 'off' where a sidecar serves")


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise SettingError(f"{_PREFIX}BUCKET_TIMING is {text!r}: give 1 to time gradient buckets, or 0")
    return text == "1"
