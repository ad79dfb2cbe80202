"""Worlds of two and three gloo ranks whose gradient buckets are timed, for the tests of this directory.

Each scenario is trained twice, without the exporter and with it, and what both came to is written to
OUT/<world>-<rank>.json: a digest of all gradients after each backward, and how often each bucket was counted.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import rank_exporter
from rank_exporter.errors import SettingError
from rank_exporter.segment.layout import ERROR_REASONS, Word
from rank_exporter.segment.reader import SegmentReader

STEPS = 4
WIDTH = 48
CAP_MB = 0.008
OUT = Path(sys.argv[1])


class Layers(nn.Module):
    """Of four layers, each with a bucket of its own, the third takes no part in odd steps where ``skips``."""

    def __init__(self, *, skips: bool = False, sparse: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.names = nn.Embedding(7, WIDTH, sparse=True) if sparse else None
        self.skips, self.calls = skips, 0

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.names is not None:
            value = value + self.names(torch.arange(len(value)) % 5)
        for number, layer in enumerate(self.layers):
            if not (self.skips and number == 2 and self.calls % 2):
                value = torch.tanh(layer(value))
        return value


def digest(model: nn.Module) -> str:
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    dense = [one.to_dense() if one.is_sparse else one for one in gradients]
    return hashlib.sha256(b"".join(one.numpy().tobytes() for one in dense)).hexdigest()


def batch(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    seed = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, WIDTH, generator=seed).to(next(model.parameters()).dtype)


def train(model: DistributedDataParallel, rank: int, *, accumulate: bool = False, keeps: bool = False) -> list[str]:
    """A digest per step. keeps: gradients are zeroed where they lie, every other time."""
    found = []
    for step in range(STEPS):
        model.zero_grad(set_to_none=not (keeps and step % 2))
        if accumulate:
            with model.no_sync():
                model(batch(model, step, rank)).square().sum().backward()
        model(batch(model, step + 50, rank)).square().sum().backward()
        found.append(digest(model))
    return found


def uneven(model: DistributedDataParallel, rank: int) -> list[str]:
    """The last rank runs out of input before the others, which then divide by how many are left."""
    found = []
    with Join([model], divide_by_initial_world_size=False):
        for step in range(STEPS - (rank == dist.get_world_size() - 1)):
            model.zero_grad()
            model(batch(model, step, rank)).square().sum().backward()
            found.append(digest(model))
    return found


def scaled(state: list[int], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook of the user's, with a state and numbers of its own."""
    state.append(bucket.index())
    work = dist.all_reduce(bucket.buffer().mul_(0.7), async_op=True)
    return work.get_future().then(lambda done: done.value()[0] * 1.1)


scaled.__annotations__ = {}  # texts, where torch looks for its own types

Scenario = tuple[dict[str, Any], dict[str, Any], Callable[[DistributedDataParallel], Any] | None, Callable[..., Any]]
SCENARIOS: dict[str, Scenario] = {
    "default": ({}, {}, None, train),
    "half": ({"half": True}, {}, None, train),
    "accumulate": ({}, {}, None, lambda model, rank: train(model, rank, accumulate=True)),
    "unused": ({"skips": True}, {"find_unused_parameters": True}, None, train),
    "static": ({}, {"static_graph": True}, None, train),
    "sparse": ({"sparse": True}, {}, None, train),
    "view": ({}, {"gradient_as_bucket_view": True}, None, lambda model, rank: train(model, rank, keeps=True)),
    "uneven": ({}, {}, None, uneven),
    "fp16": ({}, {}, lambda model: model.register_comm_hook(None, fp16_compress_hook), train),
    "scaled": (
        {},
        {},
        lambda model: model.register_comm_hook(SEEN, scaled),
        train,
    ),
    "divided": ({}, {}, lambda model: model.register_comm_hook(None, allreduce_hook), train),
    "builtin": ({}, {}, lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE), train),
    "builtin16": (
        {},
        {},
        lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
        train,
    ),
}
SEEN: list[int] = []


def build(name: str) -> DistributedDataParallel:
    inner, outer, _, _ = SCENARIOS[name]
    layers = Layers(skips=inner.get("skips", False), sparse=inner.get("sparse", False))
    return DistributedDataParallel(layers.half() if "half" in inner else layers, bucket_cap_mb=CAP_MB, **outer)


def counts(reader: SegmentReader) -> dict[str, Any]:
    snapshot = reader.snapshot()
    assert snapshot is not None
    ready, reduction = snapshot.buckets[:, :, 1:].sum(axis=2).tolist()
    errors = {reason: snapshot.word(Word.ERRORS + n) for n, reason in enumerate(ERROR_REASONS)}
    return {"ready": ready, "reduction": reduction, "errors": [name for name, number in errors.items() if number]}


def watched(name: str, rank: int, *, first: bool = False) -> dict[str, Any]:
    """The scenario with its buckets timed. first: its hook is registered before the model is watched."""
    _, _, register, run = SCENARIOS[name]
    exporter = rank_exporter.start(directory=OUT / "segments", serve="off", run=name, bucket_timing=first)
    path = exporter._recorder.writer.path
    assert path is not None
    reader = SegmentReader(path)
    model = build(name)
    if first and register is not None:
        register(model)
    found: dict[str, Any] = {}
    try:
        exporter.watch(model=model, bucket_timing=True)
    except SettingError as error:
        found["refused"] = str(error)
    if not first and register is not None:
        register(model)
    found["digests"] = run(model, rank)
    exporter.stop()
    found |= counts(reader)
    found["after"] = run(model, rank)
    assert counts(reader) == {key: found[key] for key in ("ready", "reduction", "errors")}
    reader.close()
    return found


def compared(name: str, rank: int, *, first: bool = False) -> dict[str, Any]:
    _, _, register, run = SCENARIOS[name]
    model = build(name)
    if register is not None:
        register(model)
    SEEN.clear()
    plain = {"digests": run(model, rank), "after": run(model, rank), "seen": list(SEEN)}
    SEEN.clear()
    return {"plain": plain, "timed": {**watched(name, rank, first=first), "seen": list(SEEN)}}


def of_torch() -> list[Any]:
    return [dist._register_comm_hook, dist._register_builtin_comm_hook, Join.notify_join_context]


def unasked(rank: int) -> bool:
    """Whether torch and the model are left as they are by an exporter that is not asked to time buckets."""
    before = of_torch()
    exporter = rank_exporter.start(directory=OUT / "segments", serve="off", run="unasked")
    model = build("default")
    exporter.watch(model=model)
    train(model, rank)
    exporter.stop()
    dist._register_comm_hook(model.reducer, None, scaled)  # there is none yet
    return before == of_torch()


def too_late() -> str:
    """What is said of a model that has a hook already, before anything follows what is registered."""
    exporter = rank_exporter.start(directory=OUT / "segments", serve="off", run="late")
    model = build("fp16")
    model.register_comm_hook(None, fp16_compress_hook)
    try:
        exporter.watch(model=model, bucket_timing=True)
    except SettingError as error:
        return str(error)
    finally:
        exporter.stop()
    return ""


def run_rank(rank: int, world: int) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", init_method=f"file://{OUT}/store-{world}", rank=rank, world_size=world)
    found: dict[str, Any] = {"unasked": unasked(rank), "late": too_late()}
    found |= {name: compared(name, rank) for name in SCENARIOS}
    found["first"] = compared("scaled", rank, first=True)
    (OUT / f"{world}-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch._dynamo.utils  # noqa: B018 - what every rank would load: it takes longer than all else here
    context = multiprocessing.get_context("fork")
    for world in (2, 3):
        ranks = [context.Process(target=run_rank, args=(rank, world)) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            raise SystemExit(1)


main()
