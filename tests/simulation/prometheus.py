"""A real Prometheus on the loopback that takes what is written to it, and evaluates nothing unless told to."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

__all__ = ["free_port", "prometheus"]

_READY_SECONDS = 120.0


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def prometheus(directory: Path | None = None, *, rules: bool = False, threads: int = 2) -> Iterator[str]:
    """Run Prometheus while in the context; the URL is yielded. Without a directory its data are gone afterwards.

    With ``rules`` it evaluates ``rules.yml`` in the directory, once that is there and POST /-/reload was asked for.
    """
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="rank-exporter-simulation-") as own, prometheus(Path(own)) as url:
            yield url
        return
    config = "rule_files: [rules*.yml]\n" if rules else "global: {}\n"
    (directory / "prometheus.yml").write_text(config, encoding="utf-8")
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        "prometheus",
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        "--storage.tsdb.retention.time=10y",
        # What is older than the newest sample by half a block is refused, and rules follow the series they read.
        "--storage.tsdb.min-block-duration=48h",
        "--storage.tsdb.max-block-duration=48h",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--web.enable-remote-write-receiver",
        "--web.enable-lifecycle",
        "--query.max-samples=1000000000",
        "--query.timeout=10m",
        "--log.level=warn",
    ]
    log = directory / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "GOMAXPROCS": str(threads)})
    try:
        _await_ready(url, process, log)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _await_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while True:
        try:
            if httpx.get(f"{url}/-/ready", trust_env=False, timeout=60).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"Prometheus is not ready: {log.read_text(encoding='utf-8')}")
        time.sleep(0.05)
