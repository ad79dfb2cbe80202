"""What torch's process group knows of this rank, for scripts that start their ranks themselves, as with mp.spawn."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["process_group_variables"]


def process_group_variables() -> dict[str, str]:
    """The variables that torchrun would have set, as far as an initialised process group tells them; none without."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        return {}
    found = {"RANK": str(distributed.get_rank()), "WORLD_SIZE": str(distributed.get_world_size())}
    return found | _master(distributed)


def _master(distributed: Any) -> dict[str, str]:
    """Where the ranks met, by which they know that they are of one run."""
    try:
        store = distributed.distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        if hasattr(store, "path"):
            return {"MASTER_ADDR": str(store.path)[-200:]}
        return {"MASTER_ADDR": str(store.host), "MASTER_PORT": str(store.port)}
    except (AttributeError, RuntimeError, ValueError):  # of another kind
        return {}
