"""What trainers wrap, and loops that evaluate as trainers' users do, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rank_exporter
from rank_exporter.integrations.accelerate import watch_accelerator
from rank_exporter.phases import Phase
from rank_exporter.segment.layout import Word
from rank_exporter.segment.reader import SegmentReader


class Recording:
    def __init__(self, directory: Path) -> None:
        self.exporter = rank_exporter.start(run="wrapped", directory=directory, serve="off")
        path = self.exporter._recorder.writer.path
        assert path is not None
        self.reader = SegmentReader(path)

    def steps(self) -> Any:
        self.exporter.stop()
        return self.reader.steps()["ns"]


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    made = Recording(tmp_path)
    yield made
    made.exporter.stop()
    made.reader.close()


def loader(number: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(number * 4, 8)), batch_size=4)


def test_scaler_of_a_wrapped_optimizer_that_skips_it_still_ends_the_step(recording: Recording) -> None:
    """Accelerate's optimizer is driven by a scaler; an infinite gradient costs its step, not the training's."""
    accelerator = Accelerator(cpu=True)
    model, data = nn.Linear(8, 1), loader(6)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = AcceleratedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), scaler=scaler)
    assert not accelerator.use_distributed
    recording.exporter.watch(model=model, optimizer=optimizer, dataloader=data)
    for number, (batch,) in enumerate(data):
        optimizer.zero_grad()
        scaler.scale(model(batch).mean() * (float("inf") if number in (2, 4) else 1.0)).backward()
        optimizer.step()
    found = recording.steps()
    assert len(found) == 6
    assert (found[:, Phase.OPTIMIZER] > 0).all()
    snapshot = recording.reader.snapshot()
    assert snapshot is not None
    assert snapshot.word(Word.OPTIMIZER_STEPS_SKIPPED) == 2


@pytest.mark.parametrize("begins_in", ["train", "eval"])
def test_mode_of_the_model_tells_evaluation_with_gradients_enabled(recording: Recording, begins_in: str) -> None:
    """An evaluation that disables gradients only around its forward is none of training; a loader that a backward
    follows is training's whatever the mode of the model."""
    accelerator = Accelerator(cpu=True)
    watch_accelerator(accelerator)
    net: Any = nn.Linear(8, 1)
    getattr(net, begins_in)()
    model, optimizer, train, test = accelerator.prepare(
        net, torch.optim.SGD(net.parameters(), lr=0.1), loader(4), loader(3)
    )
    for _ in range(3):
        for (batch,) in train:
            model.train()
            accelerator.backward(model(batch).mean())
            optimizer.step()
        model.eval()
        for (batch,) in test:
            with torch.no_grad():
                model(batch)
    found = recording.steps()
    assert len(found) == 12
    assert (found[4:, Phase.EVAL] > 0).tolist() == [True, False, False, False] * 2
    assert (found[4:, Phase.FIRST_BATCH] > 0).tolist() == [True, False, False, True] * 2
    assert (found[4:, Phase.INPUT_READY] > 0).tolist() == [True, True, True, False] * 2


def test_stopping_takes_every_wrapper_off(recording: Recording) -> None:
    """The trainer's classes are as they were."""
    before = vars(Accelerator).copy()
    watch_accelerator(Accelerator(cpu=True))
    assert vars(Accelerator)["prepare"] is not before["prepare"]
    recording.exporter.stop()
    assert vars(Accelerator) == before


def test_setting_that_is_wrong_is_told_where_the_trainer_is_watched(recording: Recording) -> None:
    """One line names the setting, as start does."""
    recording.exporter.stop()
    with pytest.raises(rank_exporter.SettingError, match="skew_budget_ratio is -1"):
        watch_accelerator(Accelerator(cpu=True), skew_budget_ratio=-1.0)
