"""One agent: a directory's lock, a port, the segments, and what is said about them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from prometheus_client.exposition import choose_encoder

from ..config import PORTS_TRIED, AgentSettings
from ..errors import RankExporterError
from ..segment import discovery
from ..segment.roster import AgentAddress, agent_file, rosters
from ..segment.wire import Answer
from .aligner import Aligner
from .collector import Collector
from .exposition import Exposition
from .families import Families
from .faults import Faults, warn
from .file_sd import known_as, write_entry
from .host.evidence import HostEvidence, Witness
from .linger import Linger
from .listener import is_everywhere, listen
from .lock import take
from .residence import Residence, Resident
from .samples import add_samples
from .server import run
from .spool import open_spool
from .steps import StepsQuery, select
from .web_config import WebConfigFile

__all__ = ["Service", "UnavailableError", "serve"]

_ALIVE_SECONDS: Final = 10.0


class UnavailableError(RankExporterError):
    """The settings are right, but somebody else has the directory or the ports."""


class Service:
    """What the HTTP server asks. Thread-safe: one caller at a time looks at segments or renders them."""

    def __init__(
        self,
        settings: AgentSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        faults: Faults | None = None,
    ) -> None:
        self.directory = settings.directory
        self._clock = clock
        self._lock = threading.Lock()
        self._faults = faults or Faults()
        self._linger = Linger(settings.linger_seconds)
        self._residence = Residence(settings.directory, self._linger, self._faults, clock=clock)
        self._collector = Collector(settings.host, self._faults)
        self._exposition = Exposition()
        self.aligner = Aligner(self.steps, self._served, settings.directory, self._faults)
        self._evidence = HostEvidence(settings.host, self._faults)
        self._host = settings.host
        self._spool = open_spool(settings.step_log_dir, settings.host, self._faults, most_bytes=settings.step_log_bytes)
        self._until_idle = settings.until_idle
        self._scan_failed = False
        self._scanned_at = clock()

    def scan(self) -> bool:
        """Look for segments that came and went. True once there is nothing more to do here."""
        with self._lock:
            self._scan()
            over = self._until_idle and self._residence.idle()
            ranks = [Witness.of(resident) for resident in self._residence.served]
            if self._spool is not None:
                self._spool.gather(self._residence.served)
        # Without the lock: no scrape waits for it.
        self._evidence.sample(ranks)
        if self._spool is not None and self._spool.is_due():
            self._spool.flush()
        return over

    def _scan(self) -> None:
        try:
            self._residence.scan()
        except Exception as error:  # noqa: BLE001 - what was found before is served all the same
            text = f"looking for segments failed ({error!r}): please report this (said once)"
            self._faults.report("scan", text, say=not self._scan_failed)
            self._scan_failed = True
        else:
            self._scanned_at = self._clock()

    @property
    def alive(self) -> bool:
        """Whether segments were looked for lately."""
        return self._clock() - self._scanned_at < _ALIVE_SECONDS

    def metrics(self, accept: str) -> tuple[bytes, str]:
        """The exposition in the format that the Accept header asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        openmetrics = content_type.startswith("application/openmetrics-text")
        aligned = self._aligned()
        with self._lock:
            began = time.perf_counter()
            self._linger.observe(self._clock())
            self._scan()
            reach = self._linger.two_scrapes if openmetrics else None
            families = self._collector.collect(self._residence.served, exemplar_seconds=reach)
            for resident in self._residence.former:
                if resident.snapshot is not None:
                    add_samples(families, resident, resident.snapshot)
            families.update(aligned)
            self._evidence.add_to(families)
            body = self._exposition.text(families, encode, content_type)
            self._collector.scrape_seconds += time.perf_counter() - began
        return body, content_type

    def _aligned(self) -> Families:
        families = Families()
        try:
            self.aligner.render(families)
        except Exception as error:  # noqa: BLE001 - every rank's own series are served all the same
            self._faults.report("render", f"aligned steps cannot be rendered ({error!r}): please report this")
            return Families()
        return families

    def steps(self, query: StepsQuery) -> Answer:
        """Step records of the segments as of the last scan."""
        with self._lock:
            return select(self._residence.served, query, agent=self._host)

    def _served(self) -> list[Resident]:
        with self._lock:
            return list(self._residence.served)

    def ranks(self) -> list[Resident]:
        """The segments on show, by run and rank."""
        with self._lock:
            self._scan()
            return list(self._residence.served)

    def close(self) -> None:
        """Clear up after dead ranks."""
        self._evidence.close()
        with self._lock:
            if self._spool is not None:
                self._spool.gather(self._residence.served)
                self._spool.flush()
            self._residence.close()
            rosters(self.directory)


def serve(settings: AgentSettings, *, announce: Callable[[str], None]) -> None:
    """Serve until idle, if so set, or until SIGTERM or SIGINT. ``announce`` gets one line once the port is open.

    With ``until_idle``, returns at once if the directory has an agent. Raises RankExporterError; UnavailableError where
    another agent or the holders of the ports are in the way.
    """
    discovery.prepare(settings.directory)
    lock = take(discovery.agent_lock(settings.directory))
    if lock is None:
        if settings.until_idle:
            return
        raise UnavailableError(
            f"directory {settings.directory} has an agent already: stop it, or give another directory"
        )
    try:
        _serve(settings, announce)
    finally:
        os.close(lock)


def _serve(settings: AgentSettings, announce: Callable[[str], None]) -> None:
    faults = Faults()
    web = None if settings.web_config_file is None else WebConfigFile(settings.web_config_file, warn)
    listener = listen(settings.listen_address, settings.port)
    if listener is None:
        last = min(settings.port + PORTS_TRIED - 1, 65535)
        raise UnavailableError(f"ports {settings.port} to {last} are all taken: set RANK_EXPORTER_PORT")
    with listener:
        port = listener.getsockname()[1]
        service = Service(settings, faults=faults)
        entry = _register(settings, port, faults, encrypted=web is not None and web.context is not None)
        _tell_ranks(settings, port, faults)
        try:
            address = "127.0.0.1" if is_everywhere(settings.listen_address) else settings.listen_address
            place = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
            scheme = "https" if web is not None and web.context is not None else "http"
            line = f"serving {scheme}://{place}/metrics for {settings.directory}"
            run(service, listener, on_start=lambda: announce(line), web=web)
        finally:
            if entry is not None:
                entry.unlink(missing_ok=True)
            agent_file(settings.directory).unlink(missing_ok=True)
            service.close()


def _register(settings: AgentSettings, port: int, faults: Faults, *, encrypted: bool) -> Path | None:
    if settings.file_sd_dir is None:
        return None
    try:
        return write_entry(settings, settings.file_sd_dir, port, encrypted=encrypted)
    except OSError as error:
        faults.report(
            "file_sd",
            f"no service discovery entry in {settings.file_sd_dir} ({error.strerror}): check RANK_EXPORTER_FILE_SD_DIR",
        )
        return None


def _tell_ranks(settings: AgentSettings, port: int, faults: Faults) -> None:
    try:
        AgentAddress(address=settings.listen_address, port=port, name=known_as(settings, port)).write(
            settings.directory
        )
    except OSError as error:
        faults.report(
            "peers",
            f"ranks are not told where this agent is ({error.strerror}): its steps are not aligned, make room in "
            f"{settings.directory}",
        )
