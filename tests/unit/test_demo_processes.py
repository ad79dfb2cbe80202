"""The demo's processes and the signals it takes: nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from rank_exporter.demo.command import demo
from rank_exporter.demo.failure import DemoError
from rank_exporter.demo.interruption import Interrupted, Interruption
from rank_exporter.demo.processes import Processes
from rank_exporter.demo.webhook import Webhook


def python(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(lines)]


def until_written(file: Path) -> str:
    deadline = time.monotonic() + 120
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return file.read_text()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_process_that_ends_by_itself_is_told_with_its_last_lines(tmp_path: Path) -> None:
    """The message has the name, the exit status and the end of the log."""
    with Processes(tmp_path) as processes:
        child = processes.start("server", python("print('port taken')", "raise SystemExit(3)"), dict(os.environ))
        child.process.wait()
        with pytest.raises(DemoError, match=r"server ended early, with exit status 3(.|\n)*\n  port taken"):
            processes.check()


def test_what_detached_itself_is_ended_too(tmp_path: Path) -> None:
    """A grandchild in a session of its own, orphaned long ago, does not outlive the context."""
    detached = tmp_path / "pid"
    child = python(
        "import os, pathlib, signal, subprocess, sys",
        "code = 'import os, pathlib, signal; pathlib.Path(\"pid\").write_text(str(os.getpid())); signal.pause()'",
        "subprocess.Popen([sys.executable, '-c', code], start_new_session=True)",
        "os._exit(0)",
    )
    with Processes(tmp_path) as processes:
        processes.start("parent", child, dict(os.environ)).process.wait()
        pid = int(until_written(detached))
        assert not is_gone(pid)
    assert is_gone(pid)


def test_what_ignores_being_told_is_killed(tmp_path: Path) -> None:
    """An orphan deaf to SIGTERM is ended by SIGKILL after a while."""
    child = python(
        "import os, pathlib, signal",
        "if os.fork(): os._exit(0)",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "pathlib.Path('pid').write_text(str(os.getpid()))",
        "while True: signal.pause()",
    )
    with Processes(tmp_path) as processes:
        processes.start("parent", child, dict(os.environ)).process.wait()
        pid = int(until_written(tmp_path / "pid"))
    assert is_gone(pid)


def test_children_from_before_are_left_alone(tmp_path: Path) -> None:
    """Only what was started within the context is ended by it."""
    with subprocess.Popen(python("input()"), stdin=subprocess.PIPE) as before:
        with Processes(tmp_path):
            pass
        assert before.poll() is None
        before.communicate(b"\n")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_wait(signum: signal.Signals) -> None:
    """The wait raises at once, and handlers are as before afterwards."""
    before = signal.getsignal(signum)
    with Interruption() as interruption:
        interruption.wait(0)
        os.kill(os.getpid(), signum)
        with pytest.raises(Interrupted) as interrupted:
            interruption.wait(60)
        assert interrupted.value.signum == signum
    assert signal.getsignal(signum) is before


def test_signals_beyond_the_first_break_nothing() -> None:
    """While the demo ends, more signals are only taken note of."""
    with Interruption():
        for _ in range(100):
            os.kill(os.getpid(), signal.SIGINT)


def test_the_webhook_takes_pages_over_http_and_refuses_garbage() -> None:
    """What Alertmanager posts is kept; what is no message is answered with 400."""
    with Webhook() as webhook, httpx.Client(trust_env=False, timeout=60) as client:
        assert client.post(webhook.url, content=b"{").status_code == 400
        assert client.post(webhook.url, json=[]).status_code == 400
        assert client.post(webhook.url, json={}).status_code == 400
        sent = {"alerts": [{"status": "firing", "labels": {"alertname": "A"}, "annotations": {"summary": "s"}}]}
        assert client.post(webhook.url, json=sent).status_code == 204
        assert [(alert.name, alert.annotations) for alert in webhook.alerts()] == [("A", {"summary": "s"})]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--straggler-rank", "2"], "give 0 to 1"),
        (["--ranks", "1"], "1 is not in the range 2<=x<=64"),
        (["--scenario", "none"], "'none' is not one of"),
    ],
)
def test_wrong_options_are_said_before_anything_starts(arguments: list[str], said: str) -> None:
    """A rank that is not there, too few ranks, an unknown scenario: exit status 2 and what is allowed."""
    result = CliRunner().invoke(demo, arguments)
    assert result.exit_code == 2
    assert said in result.output


def test_missing_servers_end_the_command_with_2_and_one_line(tmp_path: Path) -> None:
    """Without Prometheus the command says which packages it needs, and leaves no file."""
    environ = {"PATH": "", "TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    command = [str(Path(sys.executable).with_name("rank-exporter")), "demo"]
    result = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "apt-get install prometheus prometheus-alertmanager" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_command_is_cheap_to_import() -> None:
    """What only a demo needs is not loaded for other commands, and torch not by any."""
    code = "import sys, rank_exporter.demo.command; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "httpx", "yaml", "numpy", "http.server", "rich"} & set(loaded)


def test_playing_leaves_torch_to_the_ranks() -> None:
    """The demo's own process never loads torch."""
    code = "import sys, rank_exporter.demo.stage, rank_exporter.demo.report; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" not in loaded
