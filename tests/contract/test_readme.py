"""What README tells people to do works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest
import yaml

import rank_exporter.config

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for language, block in BLOCKS if language == "sh" for line in block.splitlines() if line]
INLINE = re.findall(r"`((?:make|rank-exporter) [^`]+)`", README)


def test_commands_are_all_of_a_kind_that_is_checked() -> None:
    """No command stands in README that the tests below do not know how to run."""
    assert {command.split()[0] for command in COMMANDS + INLINE} == {"make", "pip", "rank-exporter"}


@pytest.mark.parametrize("command", [c for c in COMMANDS + INLINE if c.startswith("make ")])
def test_make_targets_exist(command: str) -> None:
    """The targets are there; the demo's own tests run what they start."""
    done = subprocess.run(["make", "--dry-run", *shlex.split(command)[1:]], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("pip ")])
def test_what_pip_installs_is_this_project(command: str) -> None:
    """The distribution and its extras have the names that README gives."""
    name, _, extras = shlex.split(command)[-1].rstrip("]").partition("[")
    assert set(filter(None, extras.split(","))) <= set(metadata(name).get_all("Provides-Extra", []))


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("rank-exporter ")])
def test_commands_print_what_they_promise(command: str, tmp_path: Path) -> None:
    """Each command runs as it stands and fills the file it is redirected to."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, env={**os.environ, "PATH": path})  # noqa: S602
    [written] = tmp_path.iterdir()
    assert yaml.safe_load(written.read_text())


def test_inline_options_of_commands_exist() -> None:
    """A command that is only mentioned takes the options it is mentioned with."""
    for command in (c for c in INLINE if c.startswith("rank-exporter ")):
        verb, *rest = shlex.split(command)[1:]
        script = str(Path(sys.executable).with_name("rank-exporter"))
        done = subprocess.run([script, verb, "--help"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert all(option in done.stdout for option in rest if option.startswith("--"))


PROGRAMS = [block for language, block in BLOCKS if language == "python"]


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_programs_train(number: int, tmp_path: Path) -> None:
    """The examples run under torchrun with two ranks, as they stand, and record their steps."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAMS[number])
    environ = {
        **os.environ,
        "RANK_EXPORTER_DIR": str(tmp_path / "segments"),
        "RANK_EXPORTER_SERVE": "off",
        "PYTHONWARNINGS": "default",
    }
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "segments").glob("*.segment"))) == 2


def test_settings_named_are_the_settings_there_are() -> None:
    """README lists every variable, and none that is unknown."""
    [line] = re.findall(r"variables: (`RANK_EXPORTER_RUN`.*?)\. ", README, re.DOTALL)
    named = {name.removeprefix("RANK_EXPORTER_").removeprefix("_") for name in re.findall(r"`(\w+)`", line)}
    assert named == rank_exporter.config._NAMES


def test_links_lead_somewhere() -> None:
    """Every relative link has a file at its end."""
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target
