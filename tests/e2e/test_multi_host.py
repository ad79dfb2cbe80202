"""Two hosts, as network namespaces: torchrun across them, an agent on each, and a third that watches and is paged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rank_exporter import rulepack
from rank_exporter.demo.processes import Processes
from rank_exporter.demo.servers import to_webhook
from rank_exporter.demo.training import train_environ, write_shards

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

EXAMPLE = Path(__file__).parents[2] / "helm" / "examples" / "prometheus" / "prometheus.yml"
SHIPPED = Path(rulepack.__file__).parent / "rules" / "alertmanager" / "alertmanager.yml"
PAGE_SECONDS = 200.0
WATCHER = "10.77.0.1"
HOSTS = {"node-a": "10.77.0.2", "node-b": "10.77.0.3"}

RECEIVER = """
import json, sys, time
from rank_exporter.demo.webhook import Webhook
with Webhook() as webhook:
    print(json.dumps(webhook.url), flush=True)
    told = 0
    while True:
        alerts = webhook.alerts()
        for alert in alerts[told:]:
            print(json.dumps({"labels": alert.labels, "annotations": alert.annotations}), flush=True)
        told = len(alerts)
        time.sleep(0.2)
"""
DOCTOR = "from rank_exporter.doctor.command import doctor; doctor()"
ASK = "import sys, httpx; print(httpx.get(sys.argv[1], trust_env=False, timeout=60).raise_for_status().text)"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def within() -> Iterator[dict[str, list[str]]]:
    """By name of host, and `watcher`: the command that runs another one there. All share an Ethernet of their own."""
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need ip of iproute2")
    spaces = {name: f"rx{os.getpid()}-{name}" for name in ("watcher", *HOSTS)}
    tried = subprocess.run(["ip", "netns", "add", spaces["watcher"]], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"network namespaces are not permitted here: {tried.stderr.strip()}")
    try:
        ip("-n", spaces["watcher"], "link", "add", "hub", "type", "bridge")
        for number, (name, address) in enumerate(HOSTS.items()):
            ip("netns", "add", spaces[name])
            ip(
                *("-n", spaces["watcher"], "link", "add", f"port{number}", "type", "veth"),
                *("peer", "name", "eth0", "netns", spaces[name]),
            )
            ip("-n", spaces["watcher"], "link", "set", f"port{number}", "master", "hub", "up")
            ip("-n", spaces[name], "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", spaces[name], "link", "set", "eth0", "up")
        ip("-n", spaces["watcher"], "address", "add", f"{WATCHER}/24", "dev", "hub")
        ip("-n", spaces["watcher"], "link", "set", "hub", "up")
        for space in spaces.values():
            ip("-n", space, "link", "set", "lo", "up")
        yield {name: ["ip", "netns", "exec", space] for name, space in spaces.items()}
    finally:
        for space in spaces.values():
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)


def eventually(condition: Any, processes: Processes, seconds: float = 90.0) -> Any:
    """The condition's first true answer; fails early if a process has ended."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        processes.check()
        assert time.monotonic() < deadline
        time.sleep(0.3)
    return answer


def lines(log: Path) -> list[Any]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith(("{", '"'))]


class Watch:
    """Prometheus with the shipped scrape configuration and rules, Alertmanager and whoever is paged, in one place."""

    def __init__(self, command: list[str], processes: Processes, directory: Path) -> None:
        self._command = command
        self._processes = processes
        environ = {**os.environ, "GOMAXPROCS": "1"}
        self._pager = processes.start("pager", [*command, sys.executable, "-c", RECEIVER], environ)
        (webhook,) = eventually(lambda: lines(self._pager.log), processes)

        config = yaml.safe_load(SHIPPED.read_text())
        (directory / "alertmanager.yml").write_text(yaml.safe_dump(to_webhook(config, webhook)))
        options = ["--cluster.listen-address=", f"--web.listen-address={WATCHER}:9093", "--log.level=error"]
        options += [f"--config.file={directory / 'alertmanager.yml'}", f"--storage.path={directory / 'alertmanager'}"]
        processes.start("alertmanager", [*command, "prometheus-alertmanager", *options], environ)

        config = yaml.safe_load(EXAMPLE.read_text())
        # Of the shipped jobs the one with file_sd, at the pace of this test.
        config["scrape_configs"] = [job for job in config["scrape_configs"] if "file_sd_configs" in job]
        (files,) = config["scrape_configs"][0]["file_sd_configs"]
        files["files"] = [str(directory / "file_sd" / Path(files["files"][0]).name)]
        files["refresh_interval"] = "2s"
        config["global"].update(scrape_interval="1s", scrape_timeout="1s", evaluation_interval="1s")
        config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"{WATCHER}:9093"]
        (directory / config["rule_files"][0]).write_text(rulepack.render(window="30s", for_="15s"))
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        options = [f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'prometheus'}"]
        options += [f"--web.listen-address={WATCHER}:9090", "--log.level=warn"]
        processes.start("prometheus", [*command, "prometheus", *options], environ)

    def ask(self, url: str) -> Any:
        """JSON from a server there; None while it does not answer."""
        done = subprocess.run(
            [*self._command, sys.executable, "-c", ASK, url], capture_output=True, text=True, check=False
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    def targets(self) -> list[dict[str, Any]]:
        answer = self.ask(f"http://{WATCHER}:9090/api/v1/targets?state=active")
        return answer["data"]["activeTargets"] if answer else []

    def pages(self) -> list[dict[str, Any]]:
        return lines(self._pager.log)[1:]


def start_training(within: dict[str, list[str]], processes: Processes, directory: Path) -> None:
    """One rank on each host, of which the one on node-b is slow in its input."""
    write_shards(directory / "shards", len(HOSTS))
    script = ["--shards", str(directory / "shards"), "--batch-size", "128", "--slow-rank", "1", "--input-delay", "0.25"]
    for number, (name, address) in enumerate(HOSTS.items()):
        home = directory / name
        home.mkdir()
        environ = {
            **train_environ(os.environ, home),
            "GLOO_SOCKET_IFNAME": "eth0",
            "NODE_NAME": name,
            "RANK_EXPORTER_PORT": "10911",
            "RANK_EXPORTER_LISTEN_ADDRESS": address,
            "RANK_EXPORTER_FILE_SD_DIR": str(directory / "file_sd"),
            "RANK_EXPORTER_RUN": "two-hosts",
        }
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={len(HOSTS)}", f"--node-rank={number}"]
        torchrun += ["--nproc-per-node=1", f"--master-addr={HOSTS['node-a']}", "--master-port=29500"]
        processes.start(
            f"training-{name}", [*within[name], *torchrun, "-m", "rank_exporter.demo.train", *script], environ
        )


def test_a_page_names_the_host(within: dict[str, list[str]], tmp_path: Path) -> None:
    """Each host has an agent, which Prometheus finds by the shared directory; the page names the slow rank's host."""
    (tmp_path / "file_sd").mkdir()
    with Processes(tmp_path) as processes:
        watch = Watch(within["watcher"], processes, tmp_path)
        start_training(within, processes, tmp_path)

        def both_up() -> list[dict[str, Any]] | None:
            targets = watch.targets()
            return targets if [target["health"] for target in targets] == ["up", "up"] else None

        targets = eventually(both_up, processes)
        assert {target["scrapeUrl"] for target in targets} == {f"http://{own}:10911/metrics" for own in HOSTS.values()}

        (page, *others) = eventually(watch.pages, processes, PAGE_SECONDS)
        assert others == []
        expected = {"alertname": "TrainingInputStraggler", "run": "two-hosts", "rank": "1", "host": "node-b"}
        assert expected.items() <= page["labels"].items()
        assert page["labels"]["cluster"] == yaml.safe_load(EXAMPLE.read_text())["global"]["external_labels"]["cluster"]
        assert "on host node-b" in page["annotations"]["summary"]
        assert page["annotations"]["shard"] == "train-00001-of-00002"

        query = watch.ask(f"http://{WATCHER}:9090/api/v1/query?query=training_steps_total")
        series = {
            (one["metric"]["rank"], one["metric"]["host"], one["metric"]["instance"]) for one in query["data"]["result"]
        }
        assert series == {(str(n), name, f"{own}:10911") for n, (name, own) in enumerate(HOSTS.items())}

        servers = ["--prometheus", f"http://{WATCHER}:9090", "--alertmanager", f"http://{WATCHER}:9093"]
        servers += [option for own in HOSTS.values() for option in ("--agent", f"http://{own}:10911")]
        examined = subprocess.run(
            [*within["watcher"], sys.executable, "-c", DOCTOR, *servers], capture_output=True, text=True, check=False
        )
        assert (examined.returncode, examined.stderr) == (0, ""), examined.stdout
