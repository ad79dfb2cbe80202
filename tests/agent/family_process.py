"""A process that uses its CPU, forks and waits as it is told, by one line on standard input at a time."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time


def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def worker(seconds: float, *, nested: bool) -> int:
    """Fork a child that burns, or whose child does, and then waits to be killed; return once it has burnt."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        if nested and os.fork():
            signal.pause()
        parent = os.getppid()
        burn(seconds)
        os.write(writing, b".")
        # The nested one ends with the other, which alone is known by its id.
        while os.getppid() == parent:
            time.sleep(0.05)
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"."
    os.close(reading)
    return pid


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    # Where SIGCHLD is ignored, nobody has to wait for it.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def main() -> None:
    workers: list[int] = []
    for line in sys.stdin:
        order, *given = line.split()
        answer = 0
        if order == "burn":
            burn(float(given[0]))
        elif order in ("work", "nest"):
            answer = worker(float(given[0]), nested=order == "nest")
            workers.append(answer)
        elif order == "end":
            workers.remove(int(given[0]))
            end(int(given[0]))
        elif order == "churn":
            for _ in range(int(given[0])):
                end(worker(0.012, nested=False))
        elif order == "ignore":
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        elif order == "pin":
            os.sched_setaffinity(int(given[0]), {int(given[1])})
        print(answer, flush=True)
    for pid in workers:
        end(pid)


if __name__ == "__main__":
    main()
