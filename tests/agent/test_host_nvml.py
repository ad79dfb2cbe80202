"""GPUs through a stand-in for the module pynvml, and the real one where there is no driver."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rank_exporter.agent.host import nvml
from rank_exporter.agent.host.nvml import OVERDUE_SECONDS, Device, Devices


class FakeNvml:
    """What this project uses of pynvml, for two GPUs. ``fail``: errors by GPU. ``gate``: calls wait until it is set."""

    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_ERROR_GPU_IS_LOST = 15

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"NVML error {value}")
            self.value = value

    def __init__(self) -> None:
        self.gpu = [50, 100]
        self.pids: list[list[int]] = [[], []]
        self.fail: dict[int, int] = {}
        self.refused: dict[str, int] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.rounds = threading.Semaphore(0)
        self.threads: set[str] = set()
        self.shut = threading.Event()

    def nvmlInit(self) -> None:  # noqa: N802 - as NVML names it, and so below
        self.threads.add(threading.current_thread().name)

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut.set()

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self.rounds.release()
        self.gate.wait()
        self.threads.add(threading.current_thread().name)
        return len(self.gpu)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return self._answer("handle", index, index)

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return self._answer("uuid", handle, f"GPU-{handle:08d}-aaaa")

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        return self._answer("utilization", handle, SimpleNamespace(gpu=self.gpu[handle], memory=7))

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: N802
        return self._answer("memory", handle, SimpleNamespace(total=80 << 30, used=(handle + 1) << 30))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:  # noqa: N802
        return self._answer("processes", handle, [SimpleNamespace(pid=pid) for pid in self.pids[handle]])

    def _answer(self, what: str, index: int, answer: Any) -> Any:
        if index in self.fail:
            raise self.NVMLError(self.fail[index])
        if what in self.refused:
            raise self.NVMLError(self.refused[what])
        return answer


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    monkeypatch.setattr(nvml, "ROUND_SECONDS", 0.01)
    return FakeNvml()


@pytest.fixture
def devices(fake: FakeNvml, clock: Clock) -> Iterator[Devices]:
    found = Devices(loader=lambda: fake, clock=clock)
    yield found
    fake.gate.set()
    found.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "rank-exporter-nvml"]


@pytest.fixture
def settled(devices: Devices, fake: FakeNvml) -> Callable[[], list[Device]]:
    """The devices after at least one whole round that began after the call."""

    def wait() -> list[Device]:
        devices.latest()
        while fake.rounds.acquire(blocking=False):
            pass
        # The second round from now begins after the first has ended, and that one began after the call.
        for _ in range(3):
            assert fake.rounds.acquire(timeout=120)
        return devices.latest()[0]

    return wait


def test_each_gpu_tells_utilisation_memory_and_processes(fake: FakeNvml, settled: Callable[[], list[Device]]) -> None:
    """What NVML says in percent is told as a ratio, by the numbers of nvidia-smi."""
    fake.pids = [[41, 42], []]
    first, second = settled()
    assert (first.index, first.uuid, first.pids) == ("0", "GPU-00000000-aaaa", {41, 42})
    assert (first.utilization, first.memory_used_bytes) == (0.5, 1 << 30)
    assert (second.index, second.utilization, second.memory_used_bytes) == ("1", 1.0, 2 << 30)


def test_nvml_is_asked_on_a_thread_of_its_own(fake: FakeNvml, settled: Callable[[], list[Device]]) -> None:
    """No other thread ever makes a call that may not return."""
    settled()
    assert fake.threads == {"rank-exporter-nvml"}


def test_active_seconds_add_up_utilisation() -> None:
    """Half busy for a second is half a second; a gap that was not watched adds no more than two rounds."""
    fake, clock = FakeNvml(), Clock()
    probe = nvml._Probe(fake, clock)
    seen = []
    for pause in (0.0, 1.0, 1.0, 60.0):
        clock.now += pause
        [first, second], problems = probe.round()
        assert problems == []
        seen.append((first.active_seconds, second.active_seconds))
    assert seen == [(0.0, 0.0), (0.5, 1.0), (1.0, 2.0), (2.0, 4.0)]


def test_gpu_that_is_lost_costs_its_own_series(
    devices: Devices, fake: FakeNvml, settled: Callable[[], list[Device]]
) -> None:
    """The other GPU is still told, what failed is said, and the lost one is back as soon as it answers."""
    fake.fail = {0: fake.NVML_ERROR_GPU_IS_LOST}
    assert [device.index for device in settled()] == ["1"]
    assert settled() != []
    fake.fail = {}
    assert [device.index for device in settled()] == ["0", "1"]


def test_what_went_wrong_is_handed_out_once(fake: FakeNvml, clock: Clock) -> None:
    """Each round's problems are told to the first who asks, and the GPUs to everyone."""
    fake.fail = {0: fake.NVML_ERROR_GPU_IS_LOST}
    devices = Devices(loader=lambda: fake, clock=clock)
    devices.latest()
    assert fake.rounds.acquire(timeout=120)
    assert fake.rounds.acquire(timeout=120)
    fake.gate.clear()
    assert fake.rounds.acquire(timeout=120)
    found, problems = devices.latest()
    assert problems == ["GPU 0 does not answer (NVML error 15)"]
    assert devices.latest() == (found, [])
    fake.gate.set()
    devices.close()


def test_what_a_gpu_does_not_tell_is_left_out(fake: FakeNvml, settled: Callable[[], list[Device]]) -> None:
    """A partitioned GPU has no utilisation, an old driver cannot list processes, and neither is a fault."""
    fake.refused = {"utilization": fake.NVML_ERROR_NOT_SUPPORTED, "processes": fake.NVML_ERROR_FUNCTION_NOT_FOUND}
    first, _ = settled()
    assert (first.utilization, first.active_seconds, first.pids) == (None, None, frozenset())
    assert first.memory_used_bytes == 1 << 30


def test_call_that_does_not_return_is_given_up(
    devices: Devices, fake: FakeNvml, clock: Clock, settled: Callable[[], list[Device]]
) -> None:
    """Nobody waits: what was last known goes after ten seconds, is complained about once, and comes back."""
    settled()
    fake.gate.clear()
    while fake.rounds.acquire(timeout=0.5):
        pass
    assert len(devices.latest()[0]) == 2
    clock.now += OVERDUE_SECONDS + 1
    assert devices.latest() == ([], ["NVML has not returned for 10 s"])
    assert devices.latest() == ([], [])
    fake.gate.set()
    assert len(settled()) == 2


def test_thread_survives_what_it_does_not_expect(
    devices: Devices, fake: FakeNvml, settled: Callable[[], list[Device]]
) -> None:
    """Whatever a round meets, the next one is made."""
    fake.gpu = None  # type: ignore[assignment]
    assert settled() == []
    fake.gpu = [1, 2]
    assert len(settled()) == 2


def test_closing_lets_go_of_nvml(fake: FakeNvml, clock: Clock) -> None:
    """The library is shut down when the agent leaves."""
    devices = Devices(loader=lambda: fake, clock=clock)
    devices.latest()
    assert fake.rounds.acquire(timeout=120)
    devices.close()
    assert fake.shut.wait(timeout=120)


def test_host_without_the_module_has_no_gpus(caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]) -> None:
    """A missing library is mentioned once, for those who debug, and nothing is complained about."""

    def missing() -> Any:
        raise ImportError("No module named 'pynvml'")

    caplog.set_level(logging.DEBUG, logger="rank_exporter")
    devices = Devices(loader=missing)
    assert devices.latest() == ([], [])
    eventually(lambda: caplog.messages == ["no series of GPUs: No module named 'pynvml'"])
    devices.close()
    assert devices.latest() == ([], [])
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


def test_real_library_without_a_driver_is_quiet() -> None:
    """On a host without GPUs the real module finds none, says nothing, and the process ends at once."""
    program = (
        "import time\nfrom rank_exporter.agent.host.nvml import Devices\n"
        "devices = Devices()\nfirst = devices.latest()\ndevices.close()\nassert first == ([], []), first\n"
        "assert devices.latest()[1] == []\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
