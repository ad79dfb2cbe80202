"""Watches what a training script makes, as it makes it: loaders, distributed models, optimizers.

For scripts that are run through ``python -m rank_exporter`` and know nothing of it.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from .exporter import Exporter

__all__ = ["watch_everything"]


def watch_everything(exporter: Exporter) -> None:
    """Have ``exporter`` watch every DataLoader, DistributedDataParallel and optimizer that is constructed from now on.

    Training loaders are told from evaluation's by whether gradients are enabled as a batch is fetched. What cannot be
    watched is counted as an error, and made as ever.
    """
    for kind, keyword in ((DataLoader, "dataloader"), (DistributedDataParallel, "model"), (Optimizer, "optimizer")):
        _watch_instances(kind, keyword, exporter)


def _watch_instances(kind: Any, keyword: str, exporter: Exporter) -> None:
    construct = kind.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - becomes a method
        construct(self, *args, **kwargs)
        try:
            exporter.watch(**{keyword: self})
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            exporter._recorder.fault("hook", error)

    kind.__init__ = __init__
