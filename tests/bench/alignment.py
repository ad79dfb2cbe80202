"""Whether the aligning agent keeps up: 512 ranks on 64 hosts at 10 steps a second, most of them simulated.

A real agent reads 8 real segments and asks 63 others, which one process plays on 63 ports. Prints what the agent took
of a core, its memory early and late, and how far its metrics were behind the steps.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import resource
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import numpy as np

from rank_exporter.identity import Identity
from rank_exporter.phases import Phase
from rank_exporter.segment.reader import STEP_DTYPE
from rank_exporter.segment.records import RankSteps
from rank_exporter.segment.roster import Roster, roster_file
from rank_exporter.segment.wire import Answer, encode
from rank_exporter.segment.writer import SegmentWriter

HOSTS, PER_HOST = 64, 8
RANKS = HOSTS * PER_HOST
STEPS_PER_SECOND = 10
SECONDS = 60
STEPS = STEPS_PER_SECOND * SECONDS
RUN, GENERATION = "bench", 1
MS = 1_000_000


def training() -> np.ndarray:
    """ns of (STEPS, RANKS, phases): noisy input, the same for all; who is late makes the others wait."""
    ns = np.zeros((STEPS, RANKS, len(Phase)), dtype=np.int64)
    ns[:, :, Phase.INPUT_READY] = np.random.default_rng(0).lognormal(np.log(8 * MS), 0.5, (STEPS, RANKS))
    ns[:, :, Phase.FORWARD] = 20 * MS
    ns[:, :, Phase.BACKWARD] = 40 * MS
    ns[:, :, Phase.OPTIMIZER] = 5 * MS
    ready = ns.sum(axis=2)
    ns[:, :, Phase.COLLECTIVE_WAIT] = ready.max(axis=1, keepdims=True) - ready + MS
    ns[:, :, Phase.STEP] = ns[:, :, : Phase.STEP].sum(axis=2)
    return ns


def play_hosts(began: float, told: Connection) -> None:
    """Answer for all hosts but the first, each on a port of its own, with the steps that have ended by now."""
    records = np.zeros((RANKS, STEPS), dtype=STEP_DTYPE)
    records["step"] = np.arange(1, STEPS + 1)
    records["shard"] = 0
    records["ns"] = training().transpose(1, 0, 2)

    def answer(path: str) -> bytes:
        now = min(max(int((time.time() - began) * STEPS_PER_SECOND), 0), STEPS)
        after = dict(map(int, one.split(":")) for one in parse_qs(urlsplit(path).query)["after"])
        segments = [
            RankSteps(
                run=RUN,
                rank=rank,
                world_size=RANKS,
                host=f"node-{rank // PER_HOST}",
                generation=GENERATION,
                started_unix_ns=1,
                shards=("shard",),
                records=records[rank, step : max(now, step)],
            )
            for rank, step in after.items()
        ]
        return encode(Answer(agent="host", segments=tuple(segments), last_steps=(now,) * len(segments)))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                body = answer(request.split(b" ", 2)[1].decode())
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for _ in range(HOSTS - 1)]
        told.send([server.sockets[0].getsockname()[1] for server in servers])
        await asyncio.sleep(3600)

    asyncio.run(main())


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def memory_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)


def aligned_steps(url: str) -> int:
    text = httpx.get(url, trust_env=False, timeout=60).text
    found = re.search(r"^training_aligned_steps_total\{.*\} (\S+)$", text, re.MULTILINE)
    return int(float(found[1])) if found else 0


def watch(agent: subprocess.Popen[str], url: str, ranks: list[SegmentWriter], began: float) -> None:
    ns = training()[:, :PER_HOST].tolist()
    lags, done, cpu, at = [], 0, 0.0, 0.0
    memory: list[float] = []
    while (now := time.time() - began) < SECONDS:
        while done < min(int(now * STEPS_PER_SECOND), STEPS):
            for writer, phases in zip(ranks, ns[done], strict=True):
                writer.commit(phases, time.monotonic_ns())
            done += 1
        if now > 10 and now - at > 5:
            if not lags:
                first_cpu, first_at = cpu_seconds(agent.pid), now
            at = now
            lags.append((done - aligned_steps(url)) / STEPS_PER_SECOND)
            memory.append(memory_mib(agent.pid))
            cpu = (cpu_seconds(agent.pid) - first_cpu) / max(now - first_at, 1e-9)
        time.sleep(0.02)
    print(f"{RANKS} ranks on {HOSTS} hosts at {STEPS_PER_SECOND} steps/s, for {SECONDS} s")
    print(f"agent: {cpu:.0%} of a core, {memory[0]:.0f} MiB early, {memory[-1]:.0f} MiB late")
    print(f"behind the steps, when scraped: {np.median(lags):.1f} s in the median, {max(lags):.1f} s at most")


def main() -> None:
    began = time.time() + 8
    ours, theirs = multiprocessing.Pipe()
    hosts = multiprocessing.get_context("spawn").Process(target=play_hosts, args=(began, theirs), daemon=True)
    hosts.start()
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "rank_exporter.agent", "--dir", directory, "--port", "0"]
        agent = subprocess.Popen([*command, "--listen-address", "127.0.0.1"], stdout=subprocess.PIPE, text=True)
        url = agent.stdout.readline().split()[1]
        ranks = []
        for rank in range(PER_HOST):
            identity = Identity(run=RUN, rank=rank, local_rank=rank, world_size=RANKS, host="node-0")
            ranks.append(SegmentWriter.create(Path(directory), identity, skew_budget_ratio=0.1))
            ranks[-1].set_generation(GENERATION)
        ports = ours.recv()
        targets = dict.fromkeys(range(PER_HOST), url.split("/")[2])
        for host, port in enumerate(ports, start=1):
            targets |= dict.fromkeys(range(host * PER_HOST, (host + 1) * PER_HOST), f"127.0.0.1:{port}")
        Roster(run=RUN, generation=GENERATION, world_size=RANKS, targets=targets).write(roster_file(ranks[0].path))
        try:
            watch(agent, url, ranks, began)
        finally:
            for writer in ranks:
                writer.close()
            agent.terminate()
            agent.wait()
            hosts.kill()


if __name__ == "__main__":
    main()
