"""What trainers put around loaders, optimizers and models, and how to come to what is inside.

Known by the names of their classes, so that no trainer is loaded for it.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = ["innermost"]

_INSIDE: Final = {
    # Accelerate: loaders that shard or dispatch, one batch ahead; optimizers that a scaler drives.
    "DataLoaderAdapter": "base_dataloader",
    "AcceleratedOptimizer": "optimizer",
    # Lightning: loaders that move batches to the device; optimizers and models that a strategy drives.
    "_FabricDataLoader": "_dataloader",
    "_FabricOptimizer": "_optimizer",
    "_FabricModule": "_forward_module",
    "LightningOptimizer": "_optimizer",
}


def innermost(watched: Any) -> Any:
    """The loader, optimizer or model that does the work inside a trainer's wrappers; itself where there are none."""
    while True:
        inside = next((_INSIDE[kind.__name__] for kind in type(watched).__mro__ if kind.__name__ in _INSIDE), None)
        found = None if inside is None else getattr(watched, inside, None)
        if found is None:
            return watched
        watched = found
