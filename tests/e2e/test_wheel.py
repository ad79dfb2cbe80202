"""The built wheel, installed alone where there is no torch."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from rank_exporter import __version__
from rank_exporter.rulepack import render

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    [built] = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of a fresh virtual environment that holds the wheel and what it requires."""
    venv = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv)]
    subprocess.run([*pip, "install", "--quiet", "--no-compile", str(wheel)], check=True)
    return venv / "bin"


@pytest.mark.parametrize(("folder", "source"), [("rules", "rules"), ("dashboards", "grafana/dashboards")])
def test_wheel_carries_rules_and_dashboards(wheel: Path, folder: str, source: str) -> None:
    """Rules, runbooks, the Alertmanager configuration and dashboards are in the wheel as files of the package, once."""
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name for name in names if name.startswith(f"rank_exporter/{folder}/")}
    files = (path for path in (ROOT / source).rglob("*") if path.is_file())
    present = {f"rank_exporter/{folder}/{path.relative_to(ROOT / source)}" for path in files}
    assert shipped == present
    assert len(names) == len(set(names))
    assert not [name for name in names if name.startswith(("tests/", "exporter/", "grafana/"))]


def test_commands_run_without_torch(installed: Path, tmp_path: Path) -> None:
    """Rules are printed, and are those of the tree; there is no torch to fall back on."""
    assert subprocess.run(
        [str(installed / "python"), "-c", "import torch"], check=False, capture_output=True
    ).returncode
    version = subprocess.run(
        [str(installed / "rank-exporter"), "--version"], check=True, capture_output=True, text=True
    )
    assert version.stdout == f"rank-exporter, version {__version__}\n"
    printed = subprocess.run([str(installed / "rank-exporter"), "rules"], check=True, capture_output=True, text=True)
    assert printed.stdout == render()
    assert yaml.safe_load(printed.stdout)["groups"]


@pytest.fixture
def agent(installed: Path, tmp_path: Path) -> Iterator[str]:
    directory = tmp_path / "segments"
    command = [str(installed / "rank-exporter"), "agent", "--dir", str(directory), "--port", "0"]
    process = subprocess.Popen([*command, "--listen-address", "127.0.0.1"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    yield line.split()[1]
    process.terminate()
    assert process.wait(timeout=120) == 0
    process.stdout.close()


def test_agent_serves_without_torch(agent: str) -> None:
    """An agent from the wheel answers with its own metrics."""
    response = httpx.get(agent, trust_env=False, timeout=60)
    assert response.status_code == 200
    assert f'version="{__version__}"' in response.text
