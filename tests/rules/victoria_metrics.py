"""VictoriaMetrics and vmalert, as far as the tests of the rules need them."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from ..simulation.prometheus import free_port

__all__ = ["Gateway", "check", "gateway", "live", "replay", "victoria_metrics"]

_READY_SECONDS = 120.0


@contextmanager
def victoria_metrics(directory: Path) -> Iterator[str]:
    """Run VictoriaMetrics while in the context; the URL is yielded."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        "victoria-metrics",
        f"-storageDataPath={directory / 'data'}",
        f"-httpListenAddr={url.removeprefix('http://')}",
        "-retentionPeriod=100y",
        # What is written lies in the past, of which results are kept otherwise.
        "-search.disableCache",
        "-loggerLevel=WARN",
    ]
    with _running(command, directory / "victoria-metrics.log") as process:
        deadline = time.monotonic() + _READY_SECONDS
        while not _answers(f"{url}/health"):
            assert process.poll() is None, (directory / "victoria-metrics.log").read_text(encoding="utf-8")
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield url


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=60).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


@contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


class Gateway(ThreadingHTTPServer):
    """Stands between vmalert and VictoriaMetrics: what was written is found by the next query.

    VictoriaMetrics lets fresh rows be found about a second later. ``alerts`` collects what vmalert sends to a notifier.
    """

    daemon_threads = True

    def __init__(self, backend: str) -> None:
        self.alerts: list[dict[str, Any]] = []
        self.client = httpx.Client(base_url=backend, trust_env=False, timeout=60)
        self.turn = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Forward)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"


class _Forward(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self._forward(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def do_GET(self) -> None:
        self._forward(b"")

    def _forward(self, body: bytes) -> None:
        gateway = self.server
        assert isinstance(gateway, Gateway)
        if self.path.startswith("/api/v2/alerts"):
            gateway.alerts += json.loads(body)
            self._answer(200, b"")
            return
        kept = {key: value for key, value in self.headers.items() if key.lower().startswith(("content-", "x-prom"))}
        with gateway.turn:
            answer = gateway.client.request(self.command, self.path, content=body, headers=kept)
            if self.path.endswith("/write"):
                gateway.client.get("/internal/force_flush").raise_for_status()
        self._answer(answer.status_code, answer.content)

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def gateway(backend: str) -> Iterator[Gateway]:
    """A gateway before VictoriaMetrics at ``backend``."""
    server = Gateway(backend)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        server.client.close()


def check(rules: Path) -> str:
    """Let vmalert validate rules, expressions and templates. Returns what it says; raises CalledProcessError."""
    done = subprocess.run(
        ["vmalert", "-dryRun", f"-rule={rules}", "-rule.validateExpressions", "-rule.validateTemplates"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{done.returncode} {done.stderr}"


def replay(rules: Path, url: str, begin: float, end: float, step: float) -> None:
    """Evaluate rules over a span of Unix time, and write the results back."""
    done = subprocess.run(
        [
            "vmalert",
            f"-rule={rules}",
            f"-datasource.url={url}",
            f"-remoteWrite.url={url}",
            # Without it, every five minutes whatever the interval of the group.
            f"-datasource.queryStep={step:.0f}s",
            "-remoteWrite.flushInterval=20ms",
            "-replay.rulesDelay=120ms",
            "-replay.disableProgressBar",
            f"-replay.timeFrom={_utc(begin)}",
            f"-replay.timeTo={_utc(end)}",
            "-httpListenAddr=127.0.0.1:0",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "replay finished" in done.stderr


@contextmanager
def live(rules: Path, url: str, log: Path) -> Iterator[None]:
    """Evaluate rules now and from now on; alerts are sent to ``url`` too."""
    command = [
        "vmalert",
        f"-rule={rules}",
        f"-datasource.url={url}",
        f"-notifier.url={url}",
        f"-httpListenAddr=127.0.0.1:{free_port()}",
    ]
    with _running(command, log) as process:
        yield
        assert process.poll() is None, log.read_text(encoding="utf-8")


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
