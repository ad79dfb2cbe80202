"""``python -m rank_exporter script``: recorded without a word in the script, which runs as if it were alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rank_exporter.phases import Phase
from rank_exporter.segment.discovery import segment_files
from rank_exporter.segment.layout import ERROR_REASONS, Word
from rank_exporter.segment.reader import SegmentReader, Snapshot

SCRIPT = """
import multiprocessing, os, sys
print(__name__, __file__, sys.argv, sys.path[0], __package__)
what = sys.argv[1]
if what == "raises":
    def inner():
        raise ValueError("no such data")
    inner()
elif what == "exits":
    sys.exit(3)
elif what == "says":
    sys.exit("gave up")
elif what == "forks":
    child = os.fork()
    if child == 0:
        print("child", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
elif what == "dies":
    sys.stdout.flush()
    os.kill(os.getpid(), 9)
elif what == "interrupts":
    import atexit
    atexit.register(print, "at exit")
    log = open("log", "w")
    log.write("not flushed")
    raise KeyboardInterrupt
elif what == "imports":
    import neighbour
    print(neighbour.__name__, sys.modules["__main__"].what)
elif what == "spawns":
    def work(queue):
        queue.put(42)
    if __name__ == "__main__":
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        process = context.Process(target=work, args=(queue,))
        process.start()
        print(queue.get())
        process.join()
elif what == "chains":
    try:
        1 / 0
    except ZeroDivisionError as error:
        raise RuntimeError("after that") from error
elif what == "hooks":
    def hook(*_):
        raise LookupError("the hook fails itself")
    sys.excepthook = hook
    raise ValueError("no such data")
elif what == "late":
    import atexit
    atexit.register(lambda: print("at exit", what))
"""

TRAINING = """
import os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
rows = TensorDataset(torch.randn(64, 8))
for epoch in range(2):
    for (batch,) in DataLoader(rows, batch_size=8, sampler=DistributedSampler(rows)):
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for (batch,) in DataLoader(rows, batch_size=8):
            model(batch)
    model.train()
dist.barrier()
dist.destroy_process_group()
"""

PLAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
teacher = nn.Linear(8, 1).eval()
train = DataLoader(TensorDataset(torch.randn(32, 8)), batch_size=8)
test = DataLoader(TensorDataset(torch.randn(16, 8)), batch_size=8)
def evaluate():
    model.eval()
    for (batch,) in test:
        with torch.no_grad():
            model(batch)
    model.train()
for epoch in range(2):
    for (batch,) in train:
        (model(batch) - teacher(batch)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    evaluate()
"""

DRAWN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
test = DataLoader(TensorDataset(torch.randn(16, 8)), batch_size=8)
for step in range(6):
    for micro in range(2):
        model(torch.randn(4, 8)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 2:
        model.eval()
        for (batch,) in test:
            model(batch)
        model.train()
"""

TUNED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.eval()
rows = TensorDataset(torch.randn(32, 8))
for epoch in range(2):
    for (batch,) in DataLoader(rows, batch_size=8):
        model(batch).mean().backward()
        optimizer.step()
"""

SPAWNED = """
import os, sys, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
import rank_exporter
def train(rank):
    dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank_exporter.start().watch(model=model, optimizer=optimizer)
    assert rank_exporter.start(rank=rank).identity.rank == rank
    for _ in range(4):
        model(torch.randn(4, 8)).mean().backward()
        optimizer.step()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").touch()
    (tmp_path / "script.py").write_text(SCRIPT)
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SCRIPT)
    (package / "train.py").write_text(SCRIPT)
    return tmp_path


def run(directory: Path, *command: str) -> tuple[int, str, str]:
    environ = {**os.environ, "RANK_EXPORTER_DIR": str(directory / "segments"), "RANK_EXPORTER_SERVE": "off"}
    done = subprocess.run(
        [sys.executable, *command], cwd=directory, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout, done.stderr


BY_PATH = ("script.py",)
ELSEWHERE = ("./package/train.py",)
AS_MODULE = ("-m", "package.train")
AS_PACKAGE = ("-m", "package")
ENDS = (
    "plain",
    "raises",
    "exits",
    "says",
    "forks",
    "dies",
    "interrupts",
    "imports",
    "spawns",
    "chains",
    "hooks",
    "late",
)


@pytest.mark.parametrize(
    ("how", "what"),
    [
        *((BY_PATH, what) for what in ENDS),
        *((ELSEWHERE, what) for what in ("plain", "raises", "imports")),
        *((AS_MODULE, what) for what in ("plain", "raises", "exits", "spawns")),
        *((AS_PACKAGE, what) for what in ("plain", "raises")),
    ],
)
def test_script_runs_as_without(directory: Path, how: tuple[str, ...], what: str) -> None:
    """Exit code, output and traceback are those of the script alone, run by path, as a module or as a package."""
    if how == ELSEWHERE:
        (directory / "package" / "neighbour.py").touch()
    code, output, errors = run(directory, *how, what, "--flag")
    # With -m Python names the two frames of its own that run the module.
    errors = "".join(line for line in errors.splitlines(keepends=True) if "runpy" not in line)
    assert run(directory, "-m", "rank_exporter", *how, what, "--flag") == (code, output, errors)


def test_interrupt_ends_the_process_by_its_signal(directory: Path) -> None:
    """A parent sees what it would see of Python itself, after what runs at exit; nothing that was written is lost."""
    code, output, errors = run(directory, "-m", "rank_exporter", "script.py", "interrupts")
    assert code == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert output.endswith("at exit\n")
    assert (directory / "log").read_text() == "not flushed"
    reader = SegmentReader(segment_files(directory / "segments")[0])
    found = reader.snapshot()
    reader.close()
    assert found is not None
    assert found.word(Word.ENDED)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "there is no script in []: usage: python -m rank_exporter [-m MODULE | SCRIPT] [ARGUMENT ...]"),
        (["missing.py"], "script 'missing.py' is no file: usage: "),
        (["-m", "no.such.module"], "module 'no.such.module' cannot be run: give the name of a module"),
        (["--help"], "there is no script in ['--help']: usage: "),
    ],
)
def test_nothing_to_run_is_told_in_one_line(directory: Path, arguments: list[str], said: str) -> None:
    """A mistake in the command line fails before anything is started."""
    code, output, errors = run(directory, "-m", "rank_exporter", *arguments)
    assert (code, output) == (1, "")
    assert errors.startswith(f"rank-exporter: {said}")
    assert errors.count("\n") == 1
    assert not segment_files(directory / "segments")


def test_wrong_setting_stops_the_job_before_the_script(directory: Path) -> None:
    """The script has not begun when a setting is refused."""
    environ = {**os.environ, "RANK_EXPORTER_PROT": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "rank_exporter", "script.py", "plain"],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("rank-exporter: RANK_EXPORTER_PROT is set to '1', but there is no such setting")


def test_torch_is_loaded_when_the_script_loads_it(directory: Path) -> None:
    """What a script sets before it imports torch is seen by torch."""
    (directory / "script.py").write_text(
        "import os, sys\nassert 'torch' not in sys.modules\nos.environ['OMP_NUM_THREADS'] = '1'\n"
        "import torch\nprint(torch.get_num_threads())\n"
    )
    assert run(directory, "-m", "rank_exporter", "script.py") == (0, "1\n", "")


def test_script_that_knows_the_exporter_joins_in(directory: Path) -> None:
    """Start within a launched script returns the exporter that is running."""
    (directory / "script.py").write_text(
        "import rank_exporter\nexporter = rank_exporter.start()\nlist(exporter.steps(range(3)))\n"
    )
    assert run(directory, "-m", "rank_exporter", "script.py") == (0, "", "")
    [path] = segment_files(directory / "segments")
    reader = SegmentReader(path)
    assert len(reader.steps()) == 3
    reader.close()


def test_unchanged_training_script_is_recorded_under_torchrun(directory: Path) -> None:
    """Loader, model and optimizer are watched as they are made; evaluation on a loader of its own stays apart."""
    (directory / "script.py").write_text(TRAINING)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    code, _, errors = run(directory, *torchrun, "-m", "rank_exporter", "script.py")
    assert code == 0, errors
    paths = segment_files(directory / "segments")
    assert len(paths) == 2
    for path in paths:
        reader = SegmentReader(path)
        ns = reader.steps()["ns"]
        reader.close()
        assert len(ns) == 8
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.COLLECTIVE_WAIT, Phase.OPTIMIZER):
            assert (ns[:, phase] > 0).all(), phase
        assert (ns[:, Phase.INPUT_READY] > 0).tolist() == [False, True, True, True] * 2
        assert np.flatnonzero(ns[:, Phase.EVAL]).tolist() == [4]


def recorded(directory: Path) -> tuple[np.ndarray, Snapshot]:
    """Steps and words of the one segment."""
    (path,) = segment_files(directory / "segments")
    reader = SegmentReader(path)
    steps, snapshot = reader.steps(), reader.snapshot()
    reader.close()
    assert snapshot is not None
    assert not any(snapshot.words[Word.ERRORS : Word.ERRORS + len(ERROR_REASONS)])
    return steps, snapshot


def test_evaluation_of_a_plain_model_is_told_by_its_mode(directory: Path) -> None:
    """A model that is no DistributedDataParallel is not watched, and its evaluation still is none of training's input,
    though its batches are fetched with gradients enabled."""
    (directory / "script.py").write_text(PLAIN)
    code, _, errors = run(directory, "-m", "rank_exporter", "script.py")
    assert code == 0, errors
    steps, snapshot = recorded(directory)
    assert steps["samples"].tolist() == [8] * 8
    assert np.flatnonzero(steps["ns"][:, Phase.EVAL]).tolist() == [4]
    assert (snapshot.word(Word.SAMPLES), snapshot.word(Word.EPOCHS)) == (64, 2)


def test_loop_without_loader_or_distributed_model_has_its_steps(directory: Path) -> None:
    """Its optimizer alone tells them, whatever other loaders there are."""
    (directory / "script.py").write_text(DRAWN)
    code, _, errors = run(directory, "-m", "rank_exporter", "script.py")
    assert code == 0, errors
    steps, _ = recorded(directory)
    assert len(steps) == 6
    assert (steps["ns"][:, Phase.OPTIMIZER] > 0).all()
    assert np.flatnonzero(steps["ns"][:, Phase.EVAL]).tolist() == [3]


def test_model_that_is_trained_in_evaluation_mode_is_trained(directory: Path) -> None:
    """Who keeps the statistics of normalisation as they are does not evaluate."""
    (directory / "script.py").write_text(TUNED)
    code, _, errors = run(directory, "-m", "rank_exporter", "script.py")
    assert code == 0, errors
    steps, snapshot = recorded(directory)
    assert steps["samples"].tolist() == [8] * 8
    assert not steps["ns"][:, Phase.EVAL].any()
    assert snapshot.word(Word.EPOCHS) == 2


def test_ranks_that_a_script_spawns_are_of_one_run(directory: Path) -> None:
    """Without a launcher's variables the process group tells rank, world size and run."""
    (directory / "script.py").write_text(SPAWNED)
    environ = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    }
    environ |= {"RANK_EXPORTER_DIR": str(directory / "segments"), "RANK_EXPORTER_SERVE": "off"}
    meeting = directory / "meeting"
    command = [sys.executable, "script.py", f"file://{meeting}"]
    done = subprocess.run(command, cwd=directory, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = []
    for path in segment_files(directory / "segments"):
        reader = SegmentReader(path)
        identity = reader.source.identity
        found.append((identity.run, identity.rank, identity.world_size, len(reader.steps())))
        reader.close()
    assert sorted(found) == [(str(meeting), rank, 2, 4) for rank in (0, 1)]
