"""The command: what it prints, how it ends, and what it makes of wrong input."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
from rank_exporter.cli import _Group
from rank_exporter.doctor.command import doctor
_Group(commands=[doctor])(prog_name='rank-exporter')
"""
COMMAND = [sys.executable, "-c", PROGRAM, "doctor"]


def run(*arguments):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_what_a_person_reads(alertmanager, free_port):
    """A line for each finding with its remedy below, and how many there are of each kind; unreached is no fault."""
    nowhere = f"http://127.0.0.1:{free_port()}"
    done = run("--prometheus", nowhere, "--alertmanager", f"http://{alertmanager}")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "good         receivers: alerts are routed to call" in lines
    (number,) = [n for n, line in enumerate(lines) if line.startswith("not checked  rules: ")]
    assert f"{nowhere} cannot be reached" in lines[number]
    assert lines[number + 1].startswith("             → see that the address is right")
    assert lines[-1].startswith("1 good, 0 broken, ")
    told = json.loads(run("--prometheus", nowhere, "--alertmanager", f"http://{alertmanager}", "--json").stdout)
    for finding in told:
        # Whole, however narrow the terminal: a remedy is often a command to copy.
        assert not finding["remedy"] or f"             → {finding['remedy']}" in lines


def test_nothing_could_be_checked(free_port):
    """If nothing given can be reached the exit code is 2."""
    done = run("--prometheus", f"http://127.0.0.1:{free_port()}", "--grafana", f"http://127.0.0.1:{free_port()}")
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.splitlines()[-1].startswith("0 good, 0 broken, ")


def test_something_is_broken(free_port):
    """An agent that is not there is a fault, and the exit code 1."""
    done = run("--agent", f"127.0.0.1:{free_port()}")
    assert (done.returncode, done.stderr) == (1, "")


def test_a_prometheus_that_is_none(alertmanager):
    """A server that answers something else is said not to have been checked, and blamed for nothing."""
    done = run("--prometheus", f"http://{alertmanager}", "--grafana", f"http://{alertmanager}")
    assert (done.returncode, done.stderr) == (2, "")
    assert "Traceback" not in done.stdout


WRONG = [
    ([], "there is nothing to check: give --prometheus URL"),
    (["--prometheus", "ftp://x"], "'ftp://x' is no address: give one like http://host:9090"),
    (["--kube-yaml", "/no/such/file"], "/no/such/file cannot be read"),
    (["--kube-yaml", __file__], "holds no Kubernetes objects: give YAML, or the output of kubectl"),
    (["--prometheus", "http://x", "--ca-file", __file__], "cannot be used"),
]


@pytest.mark.parametrize(("arguments", "complaint"), WRONG, ids=[complaint for _, complaint in WRONG])
def test_wrong_input(arguments, complaint):
    """What cannot be used ends the command with exit code 2 and a line that names it."""
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
