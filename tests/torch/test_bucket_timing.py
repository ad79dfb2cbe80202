"""Gradient buckets are timed through a communication hook, and gradients are what they are without, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import rank_exporter
from rank_exporter.errors import SettingError
from rank_exporter.segment.layout import BUCKET_SLOTS
from rank_exporter.segment.reader import SegmentReader

HERE = Path(__file__).parent
STEPS = 4
SCENARIOS = (
    *("default", "half", "accumulate", "unused", "static", "sparse", "view", "uneven"),
    *("fp16", "scaled", "divided", "builtin", "builtin16", "first"),
)
WORLDS = (2, 3)

Found = dict[int, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What the ranks of each world came to, with and without."""
    out = tmp_path_factory.mktemp("buckets")
    done = subprocess.run(
        [sys.executable, str(HERE / "bucketed.py"), str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {
        world: [json.loads((out / f"{world}-{rank}.json").read_text()) for rank in range(world)] for world in WORLDS
    }


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_gradients_are_the_same_bit_for_bit(trained: Found, world: int, name: str) -> None:
    """With buckets timed and after a stop, without a hook and within each kind of hook, whatever the model asks for.

    A user's own hook is called for the same buckets in the same order.
    """
    for rank, found in enumerate(trained[world]):
        plain, timed = found[name]["plain"], found[name]["timed"]
        steps = STEPS - (name == "uneven" and rank == world - 1)
        assert len(set(plain["digests"])) == steps
        assert timed["digests"] == plain["digests"]
        assert timed["after"] == plain["after"]
        assert timed["seen"] == plain["seen"]
        assert bool(plain["seen"]) == (name in ("scaled", "first"))
        assert not timed["errors"]


def test_a_division_would_have_shown(trained: Found) -> None:
    """In a world of three, dividing by it is not multiplying by its inverse: digests can tell."""
    for world in WORLDS:
        found = trained[world][0]
        same = found["default"]["plain"]["digests"] == found["divided"]["plain"]["digests"]
        assert same == (world == 2)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_bucket_is_counted(trained: Found, world: int, name: str) -> None:
    """Once for each backward that reduces, but for the last one's whose end was not told before the stop."""
    for rank, found in enumerate(trained[world]):
        timed = found[name]["timed"]
        assert timed["ready"] == timed["reduction"]
        if (name, world) == ("view", 3):
            assert not any(timed["ready"])
            continue
        steps = STEPS - (name == "uneven" and rank == world - 1)
        assert steps - 1 <= timed["ready"][0] <= steps
        assert timed["ready"][1] >= 1
        assert not any(timed["ready"][5:])


def test_what_might_change_a_gradient_is_refused(trained: Found) -> None:
    """A hook that was there before, and views that are divided where they lie: one line, with the remedy."""
    for found in trained[3]:
        assert found["late"] == (
            "bucket_timing is asked of a model whose communication hook 'fp16_compress_hook' is registered already: "
            "watch it before register_comm_hook, or start(bucket_timing=True) before"
        )
        assert found["view"]["timed"]["refused"] == (
            "bucket_timing is asked of a model with gradient_as_bucket_view in a world of 3, where it might change the "
            "last bit of a gradient: leave one of the two out, or have 2, 4, 8, … ranks"
        )
    assert not any("refused" in found["view"]["timed"] for found in trained[2])


def test_torch_is_left_alone_unasked(trained: Found) -> None:
    """Where no buckets are to be timed, the model has no hook, and nothing of torch's is followed."""
    assert all(found["unasked"] for world in WORLDS for found in trained[world])


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def at_once(state: Any, bucket: Any) -> Any:
    """A hook whose future has completed as it returns, so that nothing is left to another thread."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


at_once.__annotations__ = {}  # texts, where torch looks for its own types


def network(layers: int = 4) -> DistributedDataParallel:
    torch.manual_seed(0)
    inner = nn.Sequential(*(nn.Linear(16, 16) for _ in range(layers)))
    return DistributedDataParallel(inner, bucket_cap_mb=0.0001, find_unused_parameters=True)


def timed(recording: Any, model: DistributedDataParallel, hook: Callable[..., Any] = at_once) -> None:
    recording.watch(model=model, bucket_timing=True)
    model.register_comm_hook(None, hook)


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 16)).sum().backward()


def counted(recording: Any) -> list[int]:
    """Observations by slot, the same of both kinds."""
    recording.stop()
    ready, reduction = recording.snapshot().buckets[:, :, 1:].sum(axis=2).tolist()
    assert ready == reduction
    return [int(count) for count in ready]


def test_buckets_beyond_the_sixteenth_are_other(recording: Any, group: None) -> None:
    """Sixteen have their index, in the order of reduction; what lies behind them is counted together."""
    model = network(layers=20)
    timed(recording, model)
    for _ in range(3):
        backward(model)
    found = counted(recording)
    assert found[:BUCKET_SLOTS] == [3] * BUCKET_SLOTS
    assert found[BUCKET_SLOTS] > 0
    assert found[BUCKET_SLOTS] % 3 == 0


def test_times_are_those_of_the_buckets(recording: Any, group: None) -> None:
    """A bucket is full once the one before it was handed over, and all are reduced when backward returns."""
    model = network()
    timed(recording, model)
    spent = 0
    for _ in range(4):
        loss = model(torch.ones(2, 16)).sum()
        began = time.monotonic_ns()
        loss.backward()
        spent += time.monotonic_ns() - began
    recording.stop()
    ready, reduction = recording.snapshot().buckets[:, :4, 0].astype(int)
    assert (ready[1:] - ready[:-1] > reduction[:-1]).all()
    assert (reduction > 0).all()
    assert ready[0] > 0
    assert ready[3] + reduction[3] < spent


def test_nothing_is_counted_that_is_not_reduced(recording: Any, group: None) -> None:
    """Within no_sync no bucket is handed over."""
    model = network()
    timed(recording, model)
    with model.no_sync():
        for _ in range(3):
            backward(model)
    backward(model)
    assert counted(recording)[:2] == [1, 1]


def test_buckets_of_a_second_model_are_other(recording: Any, group: None) -> None:
    """Two models' first buckets are not the same: only the first model's have names."""
    one, other = network(), network()
    timed(recording, one)
    timed(recording, other)
    backward(other)
    backward(one)
    backward(other)
    found = counted(recording)
    buckets = sum(1 for count in found[:BUCKET_SLOTS] if count)
    assert buckets >= 4
    assert found == [1] * buckets + [0] * (BUCKET_SLOTS - buckets) + [2 * buckets]


def test_error_of_a_hook_is_the_users_own(recording: Any, group: None) -> None:
    """It comes out as it went in, is none of ours, and the next backward is timed."""
    failing = [True]

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        if failing and bucket.index() == 1:
            raise LookupError("of the user's")
        return at_once(state, bucket)

    model = network()
    timed(recording, model, hook)
    with pytest.raises(LookupError, match="of the user's"):
        backward(model)
    failing.clear()
    other = network()
    timed(recording, other)
    backward(other)
    found = counted(recording)
    assert found[:2] == [1, 0]
    assert found[BUCKET_SLOTS] >= 4


class Recomputed(nn.Module):
    """All but its first layer is computed anew, by a backward within backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(checkpoint(self.rest, self.first(value), use_reentrant=True))


def test_backward_within_backward_is_one(recording: Any, group: None) -> None:
    """The inner call neither begins nor ends what is timed."""
    model = DistributedDataParallel(Recomputed(), bucket_cap_mb=0.0001)
    timed(recording, model)
    for _ in range(3):
        backward(model)
    assert counted(recording)[0] == 3


def test_what_cannot_be_timed_is_said(recording: Any, group: None) -> None:
    """A model without buckets, and one whose reduction is compiled."""
    with pytest.raises(SettingError, match="asked of a Linear, which has no buckets: give a DistributedDataParallel"):
        recording.watch(model=nn.Linear(2, 2), bucket_timing=True)
    with pytest.raises(SettingError, match="asked of a NoneType"):
        recording.watch(bucket_timing=True)
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        model = network()
    with pytest.raises(SettingError, match="compiled with its reduction, in which there are no buckets"):
        recording.watch(model=model, bucket_timing=True)


def test_a_second_hook_is_refused_as_ever(recording: Any, group: None) -> None:
    """One hook is all that a reducer takes, whosesoever it is within."""
    model = network()
    timed(recording, model)
    with pytest.raises(RuntimeError, match="can only be called once"):
        model.register_comm_hook(None, at_once)
    with pytest.raises(RuntimeError, match="can only be called once"):
        model._register_builtin_comm_hook(torch.distributed.BuiltinCommHookType.ALLREDUCE)


def test_model_is_not_kept_alive(recording: Any, group: None) -> None:
    """Its hook knows it weakly; the buckets of the model after it have names again."""
    model = network()
    timed(recording, model)
    backward(model)
    del model
    model = network()
    timed(recording, model)
    backward(model)
    assert counted(recording)[:2] == [2, 2]


def test_the_next_exporter_times_the_same_model(recording: Any, group: None, tmp_path: Path) -> None:
    """The hook that could not be taken out is used again, with the user's own in it."""
    model = network()
    timed(recording, model)
    backward(model)
    assert counted(recording)[:2] == [1, 1]
    exporter = rank_exporter.start(directory=tmp_path / "next", serve="off", run="next")
    path = exporter._recorder.writer.path
    assert path is not None
    reader = SegmentReader(path)
    exporter.watch(model=model, bucket_timing=True)
    backward(model)
    backward(model)
    exporter.stop()
    snapshot = reader.snapshot()
    reader.close()
    assert snapshot is not None
    assert snapshot.buckets[:, :2, 1:].sum(axis=2).tolist() == [[2, 2], [2, 2]]
    assert counted(recording)[:2] == [1, 1]


@pytest.mark.parametrize("inner", [False, True])
def test_setting_times_whatever_is_watched(tmp_path: Path, group: None, inner: bool) -> None:
    """Also a model that is wrapped after it was watched, and one whose hook was registered before."""
    exporter = rank_exporter.start(directory=tmp_path, serve="off", run="set", bucket_timing=True)
    path = exporter._recorder.writer.path
    assert path is not None
    reader = SegmentReader(path)
    model = network()
    model.register_comm_hook(None, at_once)
    exporter.watch(model=model.module if inner else model)
    backward(model)
    exporter.stop()
    snapshot = reader.snapshot()
    reader.close()
    assert snapshot is not None
    assert snapshot.buckets[:, :2, 1:].sum(axis=2).tolist() == [[1, 1], [1, 1]]


def test_launcher_times_by_its_setting(tmp_path: Path) -> None:
    """A script that knows nothing of it, and registers a hook of its own after constructing the model."""
    script = tmp_path / "train.py"
    script.write_text(
        f"""
import torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
model.register_comm_hook(None, allreduce_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
    )
    directory = tmp_path / "segments"
    environ = {**os.environ, "RANK_EXPORTER_DIR": str(directory), "RANK_EXPORTER_SERVE": "off"}
    done = subprocess.run(
        [sys.executable, "-m", "rank_exporter", str(script)],
        env={**environ, "RANK_EXPORTER_BUCKET_TIMING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]
    [path] = directory.glob("*.segment")
    reader = SegmentReader(path)
    snapshot = reader.snapshot()
    reader.close()
    assert snapshot is not None
    assert 2 <= snapshot.buckets[0, 0, 1:].sum() <= 3
