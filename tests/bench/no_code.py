"""The same script as it is, under `python -m rank_exporter`, and under TraceML: µs per step, interleaved in one run.

Each way runs in processes of its own, in turn; of each process the fastest epoch counts, in which nothing else ran, and
of each way the median of its processes, which differ by where their memory lies. TraceML is installed for this alone,
into a directory that is removed again; its plain loops need a `trace_step`, which the script has for it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TRACEML = "0.5.0"
TURNS = 5

SCRIPT = """
import sys, time, torch
from contextlib import nullcontext
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

step = lambda model: nullcontext()
if "traceml" in sys.argv:
    from traceml_ai import trace_step as step
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(192, 192) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(50 * 64, 192)), batch_size=64)
best = float("inf")
for _ in range(80):
    began = time.perf_counter_ns()
    for (batch,) in loader:
        with step(model):
            model(batch).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    best = min(best, (time.perf_counter_ns() - began) / 50 / 1000)
print("microseconds", best)
"""


def traceml(directory: Path) -> Path | None:
    """Where TraceML was installed without what it needs, all of which is here; None where it could not be."""
    target = directory / "traceml"
    packages = [f"traceml-ai=={TRACEML}", "msgspec"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), *packages]
    return target if subprocess.run(command, check=False, capture_output=True).returncode == 0 else None


def measure(command: list[str], directory: Path, **environ: str) -> float:
    """µs per step of the fastest epoch."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env={**os.environ, **environ},
        check=False,
        capture_output=True,
        text=True,
    )
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("microseconds ")]
    if done.returncode or len(found) != 1:
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return float(found[0])


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        script = directory / "train.py"
        script.write_text(SCRIPT)
        ours = {"RANK_EXPORTER_SERVE": "off", "RANK_EXPORTER_DIR": str(directory / "segments")}
        ways: dict[str, tuple[list[str], dict[str, str]]] = {
            "as it is": ([str(script)], {}),
            "python -m rank_exporter": (["-m", "rank_exporter", str(script)], ours),
        }
        if (installed := traceml(directory)) is not None:
            launcher = ["-m", "traceml_ai.launcher.cli", "run", str(script), "--args", "traceml"]
            ways[f"TraceML {TRACEML}"] = (launcher, {"PYTHONPATH": str(installed)})
        else:
            print(f"TraceML {TRACEML} could not be installed: no comparison with it")
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(TURNS):
            for way, (command, environ) in ways.items():
                found[way].append(measure(command, directory, **environ))
        base = statistics.median(found["as it is"])
        for way, times in found.items():
            usual = statistics.median(times)
            print(
                f"{way:<24} {usual:8.1f} µs/step, {usual - base:+7.1f}, ratio {usual / base:.3f} "
                f"(processes: {min(times):.0f} to {max(times):.0f})"
            )


if __name__ == "__main__":
    main()
