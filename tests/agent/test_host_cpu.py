"""Utilisation of the host's CPUs and pressure on them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rank_exporter.agent.host.cpu import HostCpu
from rank_exporter.agent.host.pressure import CpuPressure
from rank_exporter.agent.host.procfs import read

PROC = Path("/proc")


def stat(proc: Path, *ticks: int) -> None:
    proc.mkdir(exist_ok=True)
    (proc / "stat").write_text(f"cpu  {' '.join(map(str, ticks))}\ncpu0 1 2 3 4\nintr 5\n")


def pressure(proc: Path, total_us: int) -> None:
    (proc / "pressure").mkdir(parents=True, exist_ok=True)
    (proc / "pressure" / "cpu").write_text(
        f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
    )


def test_utilization_is_what_was_not_idle_since_the_last_sample(tmp_path: Path) -> None:
    """Waiting for I/O is idle, stolen time is not, and guests are not counted twice."""
    cpu = HostCpu(tmp_path)
    stat(tmp_path, 100, 0, 100, 1000, 50, 0, 0, 0, 90, 0)
    assert cpu.utilization(0.0) is None
    stat(tmp_path, 130, 10, 110, 1030, 60, 5, 5, 10, 120, 10)
    assert cpu.utilization(1.0) == pytest.approx(70 / 110)


def test_utilization_covers_the_last_ten_seconds(tmp_path: Path) -> None:
    """A busy spell counts until ten seconds later, and no longer."""
    cpu = HostCpu(tmp_path)
    user = idle = 0
    seen = []
    for second in range(30):
        stat(tmp_path, user, 0, 0, idle)
        seen.append(cpu.utilization(float(second)))
        user, idle = (user + 100, idle) if second < 5 else (user, idle + 100)
    assert seen[5] == 1.0
    assert seen[12] == pytest.approx(3 / 10)
    assert seen[15:] == [0.0] * 15


def test_totals_that_fall_stay_within_bounds(tmp_path: Path) -> None:
    """A processor taken out of the host lets the kernel's sums fall; the ratio stays between 0 and 1."""
    cpu = HostCpu(tmp_path)
    stat(tmp_path, 500, 0, 0, 500)
    cpu.utilization(0.0)
    stat(tmp_path, 100, 0, 0, 600)
    assert cpu.utilization(1.0) is None
    stat(tmp_path, 400, 0, 0, 900)
    assert cpu.utilization(2.0) == 0.0


def test_unknown_format_is_an_error(tmp_path: Path) -> None:
    """What does not begin with the sum over CPUs is not taken for one."""
    (tmp_path / "stat").write_text("cpu0 1 2 3 4 5 6 7 8\n")
    with pytest.raises(ValueError, match="begins with 'cpu0 1 2"):
        HostCpu(tmp_path).utilization(0.0)


def test_this_host_is_busy_while_a_process_burns() -> None:
    """The real kernel's numbers show the load of a process beside this one."""
    cpu = HostCpu(PROC)
    cpu.utilization(time.monotonic())
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    found = cpu.utilization(time.monotonic())
    assert found is not None
    assert 0.0 < found <= 1.0


def test_pressure_is_the_growth_of_the_total(tmp_path: Path) -> None:
    """A quarter of a second of stall in a second is a quarter."""
    found = CpuPressure(tmp_path)
    pressure(tmp_path, 5_000_000)
    assert found.ratio(100.0) is None
    pressure(tmp_path, 5_250_000)
    assert found.ratio(101.0) == pytest.approx(0.25)


def test_kernel_without_pressure_has_none(tmp_path: Path) -> None:
    """Where the kernel keeps no account of pressure, nothing is said about it."""
    assert CpuPressure(tmp_path).ratio(0.0) is None


def test_pressure_of_unknown_format_is_an_error(tmp_path: Path) -> None:
    """A file without the total is not taken for no pressure."""
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text("some avg10=1.00\n")
    with pytest.raises(ValueError, match="holds 'some avg10"):
        CpuPressure(tmp_path).ratio(0.0)


@pytest.mark.skipif(read(PROC / "pressure" / "cpu") is None, reason="this kernel does not account for pressure")
def test_this_kernel_tells_its_pressure() -> None:
    """The real file is understood."""
    found = CpuPressure(PROC)
    found.ratio(time.monotonic())
    second = found.ratio(time.monotonic())
    assert second is not None
    assert 0.0 <= second <= 1.0
