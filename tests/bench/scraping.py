"""What scraping costs training: step times while the agent is scraped ten times a second, against not at all.

Trains in processes of their own, in spells that alternate within one run, and reads the step times from the
segments. Prints median and p99 of both, their ratios, and by how much spells without scraping differ from each other.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import numpy as np

from rank_exporter.phases import Phase
from rank_exporter.segment.discovery import segment_files
from rank_exporter.segment.reader import SegmentReader

SPELLS = 12
SPELL_SECONDS = 4.0
SCRAPES_PER_SECOND = 10
HEADERS = {"accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4", "accept-encoding": "gzip"}

TRAINING = """
import torch, rank_exporter
from torch import nn
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
exporter = rank_exporter.start()
exporter.watch(model=model, optimizer=optimizer)
batch = torch.randn(64, 512)
while True:
    model(batch).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@contextmanager
def training(directory: Path, port: int, rank: int, ranks: int) -> Iterator[None]:
    environ = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "RANK_EXPORTER_RUN": "bench",
        "RANK_EXPORTER_DIR": str(directory),
        "RANK_EXPORTER_PORT": str(port),
        "RANK_EXPORTER_LISTEN_ADDRESS": "127.0.0.1",
        "RANK_EXPORTER_LINGER_SECONDS": "1",
    }
    process = subprocess.Popen([sys.executable, "-c", TRAINING], env=environ)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def scrape(client: HTTPConnection, until: float) -> int:
    """Ask as Prometheus does, and look at nothing: whoever reads the answer sits on another host."""
    scrapes = 0
    while time.monotonic() < until:
        began = time.monotonic()
        client.request("GET", "/metrics", headers=HEADERS)
        response = client.getresponse()
        response.read()
        assert response.status == 200, response.status
        scrapes += 1
        time.sleep(max(0.0, 1 / SCRAPES_PER_SECOND - (time.monotonic() - began)))
    return scrapes


def durations(reader: SegmentReader, began: float, ended: float) -> np.ndarray:
    """Step times in ms between two Unix times, the edges of the spell left out."""
    steps = reader.steps()
    ends = steps["end_unix_ns"] / 1e9
    return steps["ns"][(ends > began + 0.5) & (ends < ended - 0.5), Phase.STEP] / 1e6


def spells(ranks: int) -> range:
    """Where each spell without begins among the durations found, an array for each rank."""
    return range(0, SPELLS // 2 * ranks, ranks)


def measure(ranks: int) -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        client = HTTPConnection("127.0.0.1", port, timeout=20)
        stack.callback(client.close)
        for rank in range(ranks):
            stack.enter_context(training(directory, port, rank, ranks))
        while len(segment_files(directory)) < ranks:
            time.sleep(0.1)
        readers = [SegmentReader(path) for path in segment_files(directory)]
        while min(len(reader.steps()) for reader in readers) < 100:
            time.sleep(0.1)
        found: dict[bool, list[np.ndarray]] = {True: [], False: []}
        scrapes = 0
        for spell in range(SPELLS):
            scraped, began = bool(spell % 2), time.time()
            if scraped:
                scrapes += scrape(client, time.monotonic() + SPELL_SECONDS)
            else:
                time.sleep(SPELL_SECONDS)
            found[scraped] += [durations(reader, began, time.time()) for reader in readers]
        print(f"{ranks} rank(s), {scrapes / (SPELLS / 2 * SPELL_SECONDS):.1f} scrapes/s while scraped")
        for name, quantile in (("median", 0.5), ("p99", 0.99)):
            without, with_ = (float(np.quantile(np.concatenate(found[scraped]), quantile)) for scraped in (False, True))
            # What the same figure does by itself from one spell to the next.
            quiet = [float(np.quantile(np.concatenate(found[False][n : n + ranks]), quantile)) for n in spells(ranks)]
            print(
                f"  {name:<7} {without:7.2f} ms without, {with_:7.2f} ms with, ratio {with_ / without:.3f}; "
                f"spells without differ by up to {max(quiet) / min(quiet):.3f}"
            )
        for reader in readers:
            reader.close()


if __name__ == "__main__":
    measure(ranks=1)
    measure(ranks=2)
