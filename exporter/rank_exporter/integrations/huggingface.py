"""Hugging Face Trainer: one callback.

    Trainer(..., callbacks=[RankExporterCallback()])

Loaders, model and optimizer are recorded as Accelerate prepares them for the Trainer (integrations.accelerate).
``evaluate``, ``predict`` and what they call are ``eval``; saving is ``checkpoint``; the Trainer's own collectives, such
as the one that counts the tokens of all ranks after a fetch, are ``collective_wait``, not input. A step is one of the
optimizer's, with all the batches that it accumulates. Samples, and tokens where a batch has ``input_ids``, are counted.

Nothing of this is needed under ``python -m rank_exporter``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from transformers.trainer import Trainer
from transformers.trainer_callback import TrainerCallback

from ..instrument.batch import samples_of, tokens_of
from ..instrument.exporter import Exporter, start
from ..phases import Phase
from . import accelerate
from .methods import Methods

__all__ = ["RankExporterCallback", "watch_everything"]

_methods: Final = Methods()


class RankExporterCallback(TrainerCallback):
    """Starts the exporter as it is made, and records the training of the Trainer it is given to.

    settings: as of rank_exporter.start, whose SettingError it raises; none needed where it was started.
    ``exporter`` is what start returned.
    """

    def __init__(self, **settings: Any) -> None:
        self.exporter = start(**settings)
        watch_everything(self.exporter)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Watch what was prepared before the callback was there; the Trainer says which loader feeds training."""
        try:
            self.exporter.watch(
                model=kwargs.get("model"), optimizer=kwargs.get("optimizer"), dataloader=kwargs.get("train_dataloader")
            )
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self.exporter._recorder.fault("hook", error)


def watch_everything(exporter: Exporter) -> None:
    """Record what any Trainer does from now on, until the exporter stops."""
    accelerate.watch_everything(exporter)
    _methods.time(Trainer, "evaluate predict evaluation_loop _evaluate", Phase.EVAL.label, exporter)
    _methods.time(Trainer, "_save_checkpoint save_model", Phase.CHECKPOINT.label, exporter)
    # It fetches batches ahead of the steps that they belong to.
    _methods.before(Trainer, "train", lambda *_args, **_kwargs: exporter._recorder.accounts.leave_counting(), exporter)
    _methods.before(Trainer, "training_step", _count(exporter), exporter)


def _count(exporter: Exporter) -> Callable[..., None]:
    def count(_trainer: Any, _model: Any, inputs: Any, *_args: Any, **_kwargs: Any) -> None:
        exporter.count(samples=samples_of(inputs), tokens=tokens_of(inputs))

    return count
