"""Draws every dashboard for four kinds of runs, looks at the pages in a browser, and keeps pictures of them.

`make dashboards-preview` builds the page and runs this from the project's folder: a real Prometheus with simulated
runs, a server for the page, and look.mjs, which opens each dashboard in a headless Chromium, asserts what it shows, and
takes the pictures.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import yaml
from tests.simulation.loaded import load
from tests.simulation.prometheus import prometheus
from tests.simulation.run import Run, Slow

from rank_exporter import rulepack
from rank_exporter.phases import Phase

HERE = Path(__file__).parent

_SECONDS = 3600
_ONSET = 1500.0

# What is looked at: whether a person who never saw it finds the slow rank. Sixteen ranks on four hosts.
_SLOW = {
    "balanced": (),
    "input-straggler": (Slow(phase=Phase.INPUT_READY, by=0.35, ranks=(11,), start=_ONSET),),
    "compute-straggler": (Slow(phase=Phase.BACKWARD, by=0.3, ranks=(6,), start=_ONSET),),
    "rotating": (Slow(phase=Phase.INPUT_READY, by=0.9, steps=0.06, start=_ONSET),),
}


def _run(name: str, slow: tuple[Slow, ...], **more: object) -> Run:
    return Run(run=name, hosts=f"gpu-{name[0]}", ranks=16, per_host=4, step=2.0, shards=2, slow=slow, **more)  # type: ignore[arg-type]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def copyfile(self, source: Any, outputfile: Any) -> None:
        # A page that is closed while it loads is no fault.
        with contextlib.suppress(ConnectionError):
            super().copyfile(source, outputfile)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the name of the base
        pass


def _serve() -> str:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(HERE / "dist")))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


def main() -> int:
    """Return 0 if every page shows what it should."""
    end = time.time() // 60 * 60
    groups = yaml.safe_load(rulepack.render())["groups"]
    runs = [_run(name, slow) for name, slow in _SLOW.items()]
    # A run that has just begun, so that one sees what panels say while they are empty.
    runs.append(Run(run="just-begun", hosts="new-node", ranks=2, step=120.0, aligned=False, start=_SECONDS - 240.0))
    with prometheus() as url:
        load(url, *runs, seconds=_SECONDS, end=end, rules=groups)
        asked = {"page": _serve(), "prometheus": url, "from": (end - _SECONDS) * 1000, "to": end * 1000}
        environ = {**os.environ, "PREVIEW": json.dumps(asked)}
        return subprocess.run(["node", "look.mjs"], cwd=HERE, env=environ, check=False).returncode  # noqa: S607


if __name__ == "__main__":
    sys.exit(main())
