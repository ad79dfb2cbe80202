"""Lightning Fabric: one line, after the Fabric is made.

    fabric = Fabric(...)
    watch_fabric(fabric)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)

Models, optimizers and loaders are timed inside what Fabric puts around them; what its loaders copy to the device is
``h2d``, ``fabric.save`` is ``checkpoint``.
Evaluation is told from training by the mode of the model as its loader is first asked, or by disabled gradients.

Nothing of this is needed under ``python -m rank_exporter``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import torch

from ..instrument.exporter import Exporter, start
from ..phases import Phase
from .methods import Methods

__all__ = ["watch_everything", "watch_fabric"]

_methods: Final = Methods()


def watch_fabric(fabric: Any, **settings: Any) -> Exporter:
    """Record what ``fabric`` sets up from now on; returns the exporter.

    settings: as of rank_exporter.start, whose SettingError it raises; none needed where it was started.
    """
    exporter = start(**settings)
    own = next(kind for kind in type(fabric).__mro__ if kind.__name__ == "Fabric")
    watch_everything(exporter, own)
    return exporter


def watch_everything(exporter: Exporter, kind: Any) -> None:
    """Record what any Fabric, of which ``kind`` is the class, sets up from now on, until the exporter stops."""

    def prepared(result: Any, *_args: Any, **_kwargs: Any) -> None:
        for one in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(one, torch.nn.Module):
                exporter._watch(model=one)
            elif isinstance(one, torch.optim.Optimizer):
                exporter._watch(optimizer=one)

    def loader_prepared(result: Any, *_args: Any, **_kwargs: Any) -> None:
        exporter._watch(dataloader=result)

    _methods.after(kind, "setup setup_module setup_optimizers", prepared, exporter)
    _methods.after(kind, "_setup_dataloader", loader_prepared, exporter)
    wrappers = import_module(f"{kind.__module__.rpartition('.')[0]}.wrappers")
    _methods.time_copies(wrappers, "move_data_to_device", lambda _batch, device: device, exporter)
    _methods.time(kind, "save", Phase.CHECKPOINT.label, exporter)
