"""Draws every dashboard for four kinds of runs, looks at the pages in a browser, and keeps pictures of them.

`make dashboards-preview` builds the page and runs this from the project's folder: a real Prometheus with simulated
runs, a server for the page, and look.mjs, which opens each dashboard in a headless Chromium, asserts what it shows, and
takes the pictures.

    make dashboards-preview ARGS="--ranks 1024 --hours 3 --interval 120"

does so for one run of that many ranks, of which one's input is slow, and says how long Prometheus takes for each query.
"""

from __future__ import annotations

import argparse
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
from tests.grafana.boards import Query, shipped
from tests.grafana.reader import Reader
from tests.simulation.loaded import load
from tests.simulation.prometheus import prometheus
from tests.simulation.replay import duration_seconds
from tests.simulation.run import Run, Slow

from rank_exporter import rulepack
from rank_exporter.phases import Phase

HERE = Path(__file__).parent

_RANKS = 16
_ONSET = 1500.0
_SLOWEST = 8

# What is looked at: whether a person who never saw it finds the slow rank. Sixteen ranks on four hosts.
_SLOW = {
    "balanced": (),
    "input-straggler": (Slow(phase=Phase.INPUT_READY, by=0.35, ranks=(11,), start=_ONSET),),
    "compute-straggler": (Slow(phase=Phase.BACKWARD, by=0.3, ranks=(6,), start=_ONSET),),
    "rotating": (Slow(phase=Phase.INPUT_READY, by=0.9, steps=0.06, start=_ONSET),),
}


def _run(name: str, slow: tuple[Slow, ...], ranks: int) -> Run:
    return Run(run=name, hosts=f"gpu-{name[0]}", ranks=ranks, per_host=4, step=2.0, shards=2, slow=slow)


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


def _time_queries(url: str, *, end: float, seconds: int) -> None:
    """Say how long the slowest queries take, each asked three times, the quickest of them counted."""
    every = {"datasource": "prometheus", "cluster": ".*", "namespace": ".*", "host": ".*", "shard": ".*"}
    took: dict[str, float] = {}
    for board in shipped().values():
        for query in (*board.targets(), *board.annotations()):
            took[query.where] = min(_time(query, url, end, seconds, every) for _ in range(3))
    for where, spent in sorted(took.items(), key=lambda one: -one[1])[:_SLOWEST]:
        print(f"{spent:6.2f} s  {where}", flush=True)
    print(f"{max(took.values()):6.2f} s is the longest of {len(took)} queries over {seconds / 3600:g} h", flush=True)


def _time(query: Query, url: str, end: float, seconds: int, values: dict[str, str]) -> float:
    reader = Reader(url, end, seconds, {**values, "run": "input-straggler", "rank": "11"})
    reader.answer(query)
    reader.close()
    return reader.slowest


def main() -> int:
    """Return 0 if every page shows what it should."""
    parser = argparse.ArgumentParser(description="Draw the dashboards.")
    parser.add_argument("--ranks", type=int, default=_RANKS, help="of one run alone, where they are not 16")
    parser.add_argument("--hours", type=float, default=1.0, help="that the dashboards show (1)")
    parser.add_argument("--interval", type=int, default=30, help="seconds between evaluations of the rules (30)")
    options = parser.parse_args()
    seconds = int(options.hours * 3600)
    end = time.time() // 60 * 60
    groups = yaml.safe_load(rulepack.render())["groups"]
    for group in groups:
        group["interval"] = f"{max(options.interval, int(duration_seconds(group['interval'])))}s"
    kinds = _SLOW if options.ranks == _RANKS else {"input-straggler": _SLOW["input-straggler"]}
    runs = [_run(name, slow, options.ranks) for name, slow in kinds.items()]
    # A run that has just begun, so that one sees what panels say while they are empty.
    runs.append(Run(run="just-begun", hosts="new-node", ranks=2, step=120.0, aligned=False, start=seconds - 240.0))
    with prometheus() as url:
        load(url, *runs, seconds=seconds, end=end, rules=groups)
        if options.ranks != _RANKS:
            _time_queries(url, end=end, seconds=seconds)
        asked = {"page": _serve(), "prometheus": url, "from": (end - seconds) * 1000, "to": end * 1000}
        asked |= {"runs": list(kinds), "ranks": options.ranks}
        environ = {**os.environ, "PREVIEW": json.dumps(asked)}
        return subprocess.run(["node", "look.mjs"], cwd=HERE, env=environ, check=False).returncode  # noqa: S607


if __name__ == "__main__":
    sys.exit(main())
