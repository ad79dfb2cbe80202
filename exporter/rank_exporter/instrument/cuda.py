"""CUDA events as a device timer."""

from __future__ import annotations

import torch

__all__ = ["CudaTimer"]


class CudaTimer:
    """CUDA events on the current stream of one device, from a pool."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: list[torch.cuda.Event] = []

    def record(self) -> torch.cuda.Event | None:
        if torch.cuda.is_current_stream_capturing():
            return None
        try:
            event = self._pool.pop()
        except IndexError:  # not asked before, as another thread may take the last
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def is_past(self, event: torch.cuda.Event) -> bool:
        return bool(event.query())  # type: ignore[no-untyped-call]

    def between(self, first: torch.cuda.Event, second: torch.cuda.Event) -> int:
        return int(first.elapsed_time(second) * 1e6)

    def release(self, event: torch.cuda.Event) -> None:
        self._pool.append(event)
