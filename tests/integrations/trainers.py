"""Training by trainers, recorded for the tests of this directory: alone, by torchrun, or by the launcher.

Each scenario writes what the segment held of it to OUT/<scenario>-<rank>.npz. With ``!`` behind its name it is trained
without the exporter; where the exporter runs already, nobody says a word to it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import rank_exporter
from rank_exporter.instrument import exporter as running
from rank_exporter.segment.layout import ERROR_REASONS, Word
from rank_exporter.segment.reader import SegmentReader

DELAY = 0.04
"""Of each batch on the slow rank, and of each batch of evaluation on every rank."""
BATCH = 4
LENGTH = 6
RANK = int(os.environ.get("RANK", "0"))
LAUNCHED = running._running is not None


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Token ids that depend on their index alone."""

    def __init__(self, number: int, delay: float) -> None:
        self.number, self.delay = number, delay / BATCH

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(self.delay)
        ids = torch.arange(index, index + LENGTH) % 32
        return {"input_ids": ids, "labels": ids}


class Stream(IterableDataset[torch.Tensor]):
    """Rows in a stream that one rank reads for all."""

    def __init__(self, number: int, delay: float) -> None:
        self.number, self.delay = number, delay / BATCH

    def __iter__(self) -> Any:
        for index in range(self.number):
            time.sleep(self.delay)
            yield torch.full((8,), float(index % 7))


class Net(nn.Module):
    """Embeds, mixes, and tells the loss itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(32, 16), nn.Linear(16, 32)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        found = self.head(torch.tanh(self.embed(input_ids)))
        return nn.functional.cross_entropy(found.flatten(0, 1), labels.flatten())


def slow(name: str) -> float:
    return DELAY if name.endswith("slow") and RANK == 1 else 0.0


def digest(model: nn.Module) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def huggingface(name: str, out: Path, watched: bool) -> nn.Module:
    """Seven optimizer steps of two batches, evaluation after the third, a checkpoint after the fifth."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    )
    callbacks = []
    if watched and not LAUNCHED:
        from rank_exporter.integrations.huggingface import RankExporterCallback

        callbacks = [RankExporterCallback()]
    arguments = TrainingArguments(
        output_dir=str(out / "huggingface"),
        use_cpu=True,
        max_steps=7,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        gradient_accumulation_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=5,
        logging_steps=2,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    Trainer(
        model=model,
        args=arguments,
        train_dataset=Rows(16 * 8, slow(name)),
        eval_dataset=Rows(8, DELAY),
        callbacks=callbacks,
    ).train()
    return model


def accelerate(name: str, out: Path, watched: bool) -> nn.Module:
    """Two epochs of eight batches, two for a step; in between an evaluation as people write it, and a checkpoint."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    if watched and not LAUNCHED:
        from rank_exporter.integrations.accelerate import watch_accelerator

        watch_accelerator(accelerator)
    model: Any = Net()
    optimizer: Any = torch.optim.Adam(model.parameters())
    train: Any = DataLoader(Rows(8 * BATCH * accelerator.num_processes, slow(name)), batch_size=BATCH)
    test: Any = DataLoader(Rows(2 * BATCH * accelerator.num_processes, DELAY), batch_size=BATCH)
    model, optimizer, train, test = accelerator.prepare(model, optimizer, train, test)
    for _ in range(2):
        model.train()
        for batch in train:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch))
                optimizer.step()
                optimizer.zero_grad()
            count(len(batch["labels"]), watched)
        model.eval()
        for batch in test:
            with torch.no_grad():
                accelerator.gather(model(**batch))
        accelerator.save_state(str(out / "accelerate"), safe_serialization=False)
    return accelerator.unwrap_model(model)


def dispatched(name: str, out: Path, watched: bool) -> nn.Module:
    """One rank reads for all, slowly."""
    from accelerate import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    if watched and not LAUNCHED:
        from rank_exporter.integrations.accelerate import watch_accelerator

        watch_accelerator(accelerator)
    torch.manual_seed(0)
    model: Any = nn.Linear(8, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    train: Any = DataLoader(Stream(8 * BATCH * accelerator.num_processes, DELAY), batch_size=BATCH)
    model, optimizer, train = accelerator.prepare(model, optimizer, train)
    for batch in train:
        accelerator.backward(model(batch).mean())
        optimizer.step()
        optimizer.zero_grad()
        count(len(batch), watched)
    return accelerator.unwrap_model(model)


def lightning(name: str, out: Path, watched: bool) -> nn.Module:
    """Two epochs of eight batches, two for a step; validation in the middle and at the end of each."""
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, number: int) -> Any:
            return self.net(**batch)

        def validation_step(self, batch: Any, number: int) -> Any:
            self.log("val", self.net(**batch), sync_dist=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    callbacks: list[Any] = []
    if watched and not LAUNCHED:
        from rank_exporter.integrations.lightning import RankExporterCallback

        callbacks = [RankExporterCallback()]
    world = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp" if world > 1 else "auto",
        devices=world,
        max_epochs=2,
        accumulate_grad_batches=2,
        val_check_interval=4,
        default_root_dir=str(out / "lightning"),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
    )
    module = Module()
    trainer.fit(
        module,
        DataLoader(Rows(8 * BATCH * world, slow(name)), batch_size=BATCH),
        DataLoader(Rows(2 * BATCH * world, DELAY), batch_size=BATCH),
    )
    return module


def fabric(name: str, out: Path, watched: bool) -> nn.Module:
    """Two epochs of eight batches, two for a step; in between an evaluation and a checkpoint."""
    from lightning.fabric import Fabric

    world = int(os.environ.get("WORLD_SIZE", "1"))
    maker = Fabric(accelerator="cpu", strategy="ddp" if world > 1 else "auto", devices=world)
    if watched and not LAUNCHED:
        from rank_exporter.integrations.fabric import watch_fabric

        watch_fabric(maker)
    maker.launch()
    net = Net()
    model, optimizer = maker.setup(net, torch.optim.Adam(net.parameters()))
    train = maker.setup_dataloaders(DataLoader(Rows(8 * BATCH * world, slow(name)), batch_size=BATCH))
    test = maker.setup_dataloaders(DataLoader(Rows(2 * BATCH * world, DELAY), batch_size=BATCH))
    for _ in range(2):
        model.train()
        for number, batch in enumerate(train):
            with maker.no_backward_sync(model, enabled=number % 2 == 0):
                maker.backward(model(**batch))
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
            count(len(batch["labels"]), watched)
        model.eval()
        for batch in test:
            with torch.no_grad():
                model(**batch)
        maker.save(str(out / "fabric.ckpt"), {"model": model})
    return net


def watched_by_hand(name: str, out: Path, watched: bool) -> nn.Module:
    """What Accelerate and Fabric prepared, given to watch as it is, and a model as it was before."""
    from accelerate import Accelerator
    from lightning.fabric import Fabric

    accelerator = Accelerator(cpu=True)
    net: Any = Net()
    model, optimizer, train = accelerator.prepare(
        net, torch.optim.Adam(net.parameters()), DataLoader(Rows(4 * BATCH * accelerator.num_processes, 0.0), BATCH)
    )
    world = int(os.environ.get("WORLD_SIZE", "1"))
    maker = Fabric(accelerator="cpu", strategy="ddp" if world > 1 else "auto", devices=world)
    maker.launch()
    other = Net()
    theirs, stepper = maker.setup(other, torch.optim.Adam(other.parameters()))
    feed = maker.setup_dataloaders(DataLoader(Rows(4 * BATCH * world, 0.0), batch_size=BATCH))
    if watched:
        exporter = rank_exporter.start()
        exporter.watch(model=net, optimizer=optimizer, dataloader=train)
        exporter.watch(model=theirs, optimizer=stepper, dataloader=feed)
    for batch in train:
        accelerator.backward(model(**batch))
        optimizer.step()
        optimizer.zero_grad()
    for batch in feed:
        maker.backward(theirs(**batch))
        stepper.step()
        stepper.zero_grad()
    return other


def count(samples: int, watched: bool) -> None:
    if watched:
        rank_exporter.start().count(samples=samples)


SCENARIOS: dict[str, Callable[[str, Path, bool], nn.Module]] = {
    scenario.__name__: scenario for scenario in (huggingface, accelerate, dispatched, lightning, fabric)
} | {"by_hand": watched_by_hand}


def record(name: str, out: Path) -> dict[str, Any]:
    """What the exporter recorded of a scenario."""
    scenario = SCENARIOS[name.partition("-")[0].removesuffix("!")]
    if name.endswith("!"):
        return {"digest": digest(scenario(name, out, False))}
    exporter = rank_exporter.start()
    path = exporter._recorder.writer.path
    assert path is not None
    reader = SegmentReader(path)
    before = exporter._recorder.steps_ended
    found: dict[str, Any] = {"digest": digest(scenario(name, out, True))}
    if LAUNCHED:
        exporter._recorder.advance()
        exporter._recorder.publish()
    else:
        exporter.stop()
    snapshot = reader.snapshot()
    assert snapshot is not None
    errors = {reason: snapshot.word(Word.ERRORS + n) for n, reason in enumerate(ERROR_REASONS)}
    assert not any(errors.values()), errors
    account = {"words": snapshot.words}
    return found | account | {"steps": reader.steps(before), "facts": np.array(sorted(snapshot.facts.items()))}


def reset() -> None:
    """Trainers keep what they found in the first place; each scenario is to find it anew."""
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState, PartialState

        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()


def main() -> None:
    out, names = Path(sys.argv[1]), sys.argv[2:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    for name in names:
        reset()
        np.savez(out / f"{name}-{RANK}.npz", **record(name, out))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
