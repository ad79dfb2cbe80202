"""Lightning Trainer: one callback. Fabric has its own line, see integrations.fabric.

    Trainer(..., callbacks=[RankExporterCallback()])

Input is timed at the DataLoader that Lightning's fetchers draw from; copying it to the device is ``h2d``. ``forward``
is the module's ``training_step``; validation is ``eval``; saving is ``checkpoint``; the broadcast with which ranks
agree to go on is ``collective_wait``. The Trainer runs forward and backward within the optimizer's step: they are told
apart from it. Samples, and tokens where a batch has ``input_ids``, are counted.

Nothing of this is needed under ``python -m rank_exporter``. For ``lightning`` as well as for ``pytorch_lightning``.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import torch

from ..instrument.batch import samples_of, tokens_of
from ..instrument.exporter import Exporter, start
from ..instrument.model import follow_backward
from ..phases import Phase
from .methods import Methods

# The script's, of the two packages that there are.
if TYPE_CHECKING or (find_spec("lightning") is not None and "pytorch_lightning" not in sys.modules):
    from lightning.pytorch.callbacks import Callback
else:
    from pytorch_lightning.callbacks import Callback

__all__ = ["RankExporterCallback", "watch_everything"]

_methods: Final = Methods()


class RankExporterCallback(Callback):
    """Starts the exporter as it is made, and records the training of the Trainer it is given to.

    settings: as of rank_exporter.start, whose SettingError it raises; none needed where it was started.
    ``exporter`` is what start returned.
    """

    def __init__(self, **settings: Any) -> None:
        self.exporter = start(**settings)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin to record, by what the Trainer at hand is made of."""
        try:
            [own] = [kind for kind in type(trainer).__mro__ if kind.__module__.endswith(".trainer.trainer")]
            watch_everything(self.exporter, own.__module__.removesuffix(".trainer.trainer"))
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self.exporter._recorder.fault("hook", error)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Watch the optimizers, which are there by now."""
        try:
            self.exporter._watch(optimizer=list(trainer.optimizers))
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self.exporter._recorder.fault("hook", error)


def watch_everything(exporter: Exporter, package: str = "lightning.pytorch") -> None:
    """Record what any Trainer of ``package`` (lightning.pytorch or pytorch_lightning) does from now on, until the
    exporter stops."""
    trainer = import_module(f"{package}.trainer.trainer").Trainer
    strategy = import_module(f"{package}.strategies.strategy").Strategy
    combined = import_module(f"{package}.utilities.combined_loader").CombinedLoader
    evaluation = import_module(f"{package}.loops.evaluation_loop")._EvaluationLoop
    epoch = import_module(f"{package}.loops.training_epoch_loop")._TrainingEpochLoop
    recorder = exporter._recorder

    def draw(self: Any) -> None:
        # Evaluation draws without gradients, and is timed as a whole.
        if torch.is_grad_enabled():
            recorder.accounts.leave_counting()
        for loader in self.flattened if torch.is_grad_enabled() else ():
            exporter._watch(dataloader=loader)

    def backward(self: Any, closure_loss: Any, *_args: Any, **_kwargs: Any) -> None:
        if not recorder.is_elsewhere():
            follow_backward(closure_loss, self.model, recorder)

    _methods.before(combined, "__iter__", draw, exporter)
    _methods.before(strategy, "backward", backward, exporter)
    _methods.before(strategy, "training_step", _step(exporter), exporter)
    _methods.time(strategy, "training_step", Phase.FORWARD.label, exporter)
    _methods.time_copies(strategy, "batch_to_device", _device, exporter)
    _methods.time(evaluation, "run", Phase.EVAL.label, exporter)
    _methods.wrap(trainer, "save_checkpoint", lambda call: _saving(call, exporter), exporter)
    _methods.time(epoch, "_broadcast_sigterm_tensor", Phase.COLLECTIVE_WAIT.label, exporter)


def _device(self: Any, _batch: Any, device: Any = None, *_args: Any, **_kwargs: Any) -> Any:
    return device or self.root_device


def _saving(call: Callable[..., Any], exporter: Exporter) -> Callable[..., Any]:
    """Saving is often done at the end of an evaluation, which is suspended for it."""
    span, recorder = exporter.phase(Phase.CHECKPOINT.label), exporter._recorder
    evaluation = int(Phase.EVAL)

    def saving(*args: Any, **kwargs: Any) -> Any:
        if recorder.is_elsewhere():
            return call(*args, **kwargs)
        suspended = recorder.timeline.phase == evaluation
        if suspended:
            recorder.timeline.leave(evaluation)
        try:
            with span:
                return call(*args, **kwargs)
        finally:
            if suspended:
                recorder.timeline.enter(evaluation)

    return saving


def _step(exporter: Exporter) -> Callable[..., None]:
    watched: Any = None

    def step(self: Any, batch: Any = None, *_args: Any, **_kwargs: Any) -> None:
        nonlocal watched
        if watched is None or watched() is not self.model:
            exporter._watch(model=self.model)
            watched = weakref.ref(self.model)
        exporter.count(samples=samples_of(batch), tokens=tokens_of(batch))

    return step
