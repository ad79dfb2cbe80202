"""The examples: valid where they are applied, found by the chart, and in settings that the exporter knows."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml

from rank_exporter import rulepack
from rank_exporter.config import DEFAULT_PORT, agent_settings, settings
from rank_exporter.identity import Identity
from rank_exporter.phases import Phase
from rank_exporter.segment.layout import SIZE
from rank_exporter.segment.writer import SegmentWriter

SHM = "/dev/shm"  # noqa: S108 - what manifests mount
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "helm" / "examples"
MANIFESTS = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
SIDECAR = EXAMPLES / "kubernetes" / "sidecar.yaml"
SIDECARS = ("1.29", "1.33", "1.37")
"""Versions of Kubernetes that have containers as sidecars."""
TRAINING = [path for path in MANIFESTS if path != SIDECAR]

each_manifest = pytest.mark.parametrize("path", MANIFESTS, ids=[path.stem for path in MANIFESTS])


def _pod_templates(node):
    """Everything that has containers, as a Pod's metadata and spec, wherever it stands."""
    if isinstance(node, dict):
        if "containers" in node.get("spec", {}):
            yield {"metadata": node.get("metadata", {}), "spec": node["spec"]}
        for child in node.values():
            yield from _pod_templates(child)
    elif isinstance(node, list):
        for child in node:
            yield from _pod_templates(child)


def _documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def _variables(container):
    """NAME -> value of a container's environment; for one from a field, the field's path."""
    return {one["name"]: one.get("value") or one["valueFrom"]["fieldRef"]["fieldPath"] for one in container["env"]}


def _training_variables(path):
    (job,) = [document for document in _documents(path) if document["kind"] != "Service"]
    if job["kind"] == "TrainJob":
        return [_variables(job["spec"]["trainer"])]
    return [_variables(pod["spec"]["containers"][0]) for pod in _pod_templates(job)]


def test_every_kind_of_job_has_an_example():
    """There is an example for each operator, and one with a sidecar."""
    kinds = {document["kind"] for path in MANIFESTS for document in _documents(path)}
    assert kinds == {"PyTorchJob", "TrainJob", "JobSet", "Job", "Service"}


@each_manifest
def test_examples_are_valid(path, validate):
    """Each object fits its schema, and each pod template in it is a pod of Kubernetes."""
    for document in _documents(path):
        validate(document, versions=SIDECARS)
        for pod in _pod_templates(document):
            if document["kind"] == "TrainJob":
                continue  # a patch of a pod, not a pod; the schema of TrainJob covers it
            validate({"apiVersion": "v1", "kind": "Pod", **pod}, versions=SIDECARS)


@each_manifest
def test_the_chart_finds_the_pods(path, chart_path):
    """Pods have the labels that the chart selects by default."""
    selector = yaml.safe_load((chart_path / "values.yaml").read_text())["training"]["podSelector"]["matchLabels"]
    templates = [pod for document in _documents(path) for pod in _pod_templates(document)]
    assert templates
    for pod in templates:
        assert selector.items() <= pod["metadata"]["labels"].items()


@each_manifest
def test_pods_name_their_host_and_run(path):
    """The node's name and the run come by the downward API, the run from a label that the kind's controller sets."""
    by_kind = {"pytorchjob": "training.kubeflow.org/job-name", "job": "batch.kubernetes.io/job-name"}
    label = by_kind.get(path.stem, "jobset.sigs.k8s.io/jobset-name" if path != SIDECAR else by_kind["job"])
    found = _training_variables(path)
    assert found
    for variables in found:
        assert variables["NODE_NAME"] == "spec.nodeName"
        assert variables["RANK_EXPORTER_RUN"] == f"metadata.labels['{label}']"
        known = settings({**variables, "RANK": "0", "WORLD_SIZE": "1"})
        assert known.agent.host == "spec.nodeName"


@pytest.mark.parametrize("path", TRAINING, ids=[path.stem for path in TRAINING])
def test_shared_memory_is_large_enough(path):
    """A volume in memory stands at /dev/shm, where segments go by default and batches of loaders as well."""
    for document in _documents(path):
        for pod in _pod_templates(document):
            (mount,) = [m for c in pod["spec"]["containers"] for m in c["volumeMounts"] if m["mountPath"] == SHM]
            (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == mount["name"]]
            assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}


def test_the_sidecar_shares_directory_and_user():
    """Ranks and agent mount one volume, name one directory in it, run as one user, and only the agent serves."""
    (job,) = _documents(SIDECAR)
    pod = job["spec"]["template"]["spec"]
    (agent,), (trainer,) = pod["initContainers"], pod["containers"]
    assert agent["restartPolicy"] == "Always"
    (mount,) = agent["volumeMounts"]
    assert mount in trainer["volumeMounts"]
    directory = _variables(trainer)["RANK_EXPORTER_DIR"]
    assert agent["args"] == ["--dir", directory]
    assert Path(directory).parent == Path(mount["mountPath"])
    assert _variables(trainer)["RANK_EXPORTER_SERVE"] == "off"
    assert pod["securityContext"]["runAsUser"] > 0
    assert "runAsUser" not in {**agent["securityContext"], **trainer.get("securityContext", {})}
    assert agent["ports"][0]["containerPort"] == DEFAULT_PORT
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
    mebibytes = int(volume["emptyDir"]["sizeLimit"].removesuffix("Mi"))
    assert mebibytes << 20 >= 4 * 16 * SIZE, "room for the segments of sixteen ranks that restarted thrice"


def _instructions(path):
    text = re.sub(r"\\\n", " ", path.read_text())
    return [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]


def test_the_sidecar_serves_what_the_ranks_write(tmp_path):
    """The image's entry point with the manifest's arguments serves a rank of the manifest's directory."""
    (job,) = _documents(SIDECAR)
    arguments = job["spec"]["template"]["spec"]["initContainers"][0]["args"]
    (entry_point,) = [
        yaml.safe_load(rest) for name, rest in _instructions(EXAMPLES / "agent.Dockerfile") if name == "ENTRYPOINT"
    ]
    directory = tmp_path / arguments[1].lstrip("/")
    directory.parent.mkdir(parents=True, mode=0o777)
    identity = Identity(run="train", rank=5, local_rank=5, world_size=8, host="node-a")
    command = [str(Path(sys.executable).parent / entry_point[0]), *entry_point[1:], arguments[0], str(directory)]
    environ = {**os.environ, "RANK_EXPORTER_PORT": "0", "RANK_EXPORTER_LISTEN_ADDRESS": "127.0.0.1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    try:
        ready, _, _ = select.select([process.stdout], [], [], 60)
        assert ready
        url = process.stdout.readline().split()[1]
        writer = SegmentWriter.create(directory, identity, skew_budget_ratio=0.1)
        writer.commit([1_000_000] * len(Phase), time.monotonic_ns())
        assert (
            'training_steps_total{host="node-a",rank="5",run="train"} 1.0'
            in httpx.get(url, trust_env=False, timeout=60).text
        )
        assert directory.stat().st_mode & 0o777 == 0o700
        writer.close()
    finally:
        process.terminate()
        assert process.wait(30) == 0
        process.stdout.close()


def test_the_agents_image_is_small_and_unprivileged(tmp_path):
    """What the Dockerfile copies suffices to install the package; the image adds no torch and runs as nobody known."""
    instructions = _instructions(EXAMPLES / "agent.Dockerfile")
    assert [rest for name, rest in instructions if name == "USER"] == ["10911:10911"]
    assert [rest for name, rest in instructions if name == "EXPOSE"] == [str(DEFAULT_PORT)]
    assert all("slim" in rest for name, rest in instructions if name == "FROM")
    assert not [rest for name, rest in instructions if name == "RUN" and "torch" in rest]
    (user,) = {one["spec"]["template"]["spec"]["securityContext"]["runAsUser"] for one in _documents(SIDECAR)}
    assert user == DEFAULT_PORT

    context = tmp_path / "src"
    for name, rest in instructions:
        if name == "COPY" and not rest.startswith("--from"):
            *sources, destination = rest.split()
            for source in sources:
                target = context / Path(destination).relative_to("/src")
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, target, symlinks=True)
                else:
                    target.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / source, target)
    installed = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--no-index", "--target", str(installed), str(context)], check=True, cwd=tmp_path)
    code = (
        "import sys, rank_exporter.agent.service as service, rank_exporter.rulepack as rulepack\n"
        "rulepack.render(); print(service.__file__); sys.exit('torch' in sys.modules)"
    )
    environ = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(str(installed))


def test_the_training_image_takes_one_line():
    """A training image needs one `pip install` and no other change."""
    instructions = _instructions(EXAMPLES / "training.Dockerfile")
    assert [rest for name, rest in instructions if name == "RUN"] == ["pip install --no-cache-dir rank-exporter"]


def test_the_batch_script_starts_torchrun_on_every_host(tmp_path):
    """bash runs the script; srun gets a torchrun whose rendezvous is the first host, and the exporter's settings."""
    stubs = {
        "scontrol": 'test "$*" = "show hostnames node-[3-6]"; printf "node-3\\nnode-4\\nnode-5\\nnode-6\\n"',
        "srun": 'printf "%s\\n" "$@"; env | grep ^RANK_EXPORTER_',
    }
    for name, body in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\nset -e\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NAME": "train", "SLURM_JOB_ID": "17", "SLURM_NNODES": "4", "SLURM_JOB_NODELIST": "node-[3-6]"}
    done = subprocess.run(
        ["bash", EXAMPLES / "slurm" / "train.sbatch"],
        env={**slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert {"torchrun", "--nnodes=4", "--rdzv-endpoint=node-3:29500", "--rdzv-id=17"} <= set(lines)
    environ = dict(line.split("=", 1) for line in lines if line.startswith("RANK_EXPORTER_"))
    known = settings({**environ, **slurm})
    assert known.identity.run == "train-17"
    assert known.agent.file_sd_dir == Path("/cluster/rank-exporter/targets")


def test_prometheus_discovers_what_agents_write():
    """The scrape configurations watch the directory that the batch script sets."""
    script = (EXAMPLES / "slurm" / "train.sbatch").read_text()
    directory = re.search(r"RANK_EXPORTER_FILE_SD_DIR=(\S+)", script)[1]
    for name in ("prometheus.yml", "agent.yml"):
        jobs = yaml.safe_load((EXAMPLES / "prometheus" / name).read_text())["scrape_configs"]
        (job,) = [job for job in jobs if "file_sd_configs" in job]
        assert job["file_sd_configs"][0]["files"] == [f"{directory}/*.json"]


def test_promtool_accepts_the_configurations(tmp_path):
    """Both configurations are valid, with the rules beside the one that evaluates them."""
    config = yaml.safe_load((EXAMPLES / "prometheus" / "prometheus.yml").read_text())
    # Debian builds Prometheus without discovery in Kubernetes.
    for job in config["scrape_configs"]:
        job.pop("kubernetes_sd_configs", None)
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    (rules,) = config["rule_files"]
    (tmp_path / rules).write_text(rulepack.render())
    for command in (
        ["promtool", "check", "config", tmp_path / "prometheus.yml"],
        ["promtool", "check", "config", "--agent", EXAMPLES / "prometheus" / "agent.yml"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_is_valid(tmp_path):
    """systemd finds nothing to complain about, and the agent knows the unit's settings."""
    unit = EXAMPLES / "systemd" / "rank-exporter-agent@.service"
    text = unit.read_text().replace("/opt/rank-exporter/bin/rank-exporter", sys.executable)
    (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "rank-exporter-agent@root.service"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    environ = dict(
        line.removeprefix("Environment=").split("=", 1) for line in text.splitlines() if line.startswith("Environment=")
    )
    assert agent_settings(environ).directory == Path(SHM) / "rank-exporter-%i"
