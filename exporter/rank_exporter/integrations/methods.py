"""Methods of a trainer's classes, timed from outside for as long as an exporter runs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ..instrument.exporter import Exporter
from ..phases import Phase

__all__ = ["Methods"]

Call = Callable[..., Any]


class Methods:
    """Puts calls around methods of classes, once for each exporter, and takes them off when it stops.

    What is put around a method must call it, return what it returns, and raise nothing of its own.
    """

    def __init__(self) -> None:
        self._wrapped: WeakKeyDictionary[Exporter, set[tuple[Any, str, str]]] = WeakKeyDictionary()

    def wrap(
        self, kind: Any, names: str, make: Callable[[Call], Call], exporter: Exporter, purpose: str = "wrap"
    ) -> None:
        """Replace each method in ``names`` (by spaces) that ``kind`` has by what ``make`` makes of it, once for each
        purpose."""
        wrapped = self._wrapped.setdefault(exporter, set())
        for name in names.split():
            original = getattr(kind, name, None)
            if original is None or (kind, name, purpose) in wrapped:
                continue
            wrapped.add((kind, name, purpose))
            own = name in vars(kind)
            around = functools.wraps(original)(make(original))
            setattr(kind, name, around)
            exporter._undo.append(functools.partial(_unwrap, kind, name, around, original if own else None))

    def time(self, kind: Any, names: str, phase: str, exporter: Exporter) -> None:
        """Time each method as a phase, see Exporter.phase."""
        span = exporter.phase(phase)
        recorder = exporter._recorder

        def make(call: Call) -> Call:
            def timed(*args: Any, **kwargs: Any) -> Any:
                if recorder.is_elsewhere():
                    return call(*args, **kwargs)
                with span:
                    return call(*args, **kwargs)

            return timed

        self.wrap(kind, names, make, exporter, "time")

    def time_copies(self, holder: Any, name: str, device: Callable[..., Any], exporter: Exporter) -> None:
        """Time a method, or a function of a module, as ``h2d`` where ``device``, called alike, says that it copies to
        another device than the host."""
        span = exporter.phase(Phase.H2D.label)
        recorder = exporter._recorder

        def make(call: Call) -> Call:
            def timed(*args: Any, **kwargs: Any) -> Any:
                if recorder.is_elsewhere() or not _is_device(device, args, kwargs):
                    return call(*args, **kwargs)
                with span:
                    return call(*args, **kwargs)

            return timed

        self.wrap(holder, name, make, exporter, "copy")

    def after(self, kind: Any, names: str, see: Callable[..., None], exporter: Exporter) -> None:
        """Show what each method returned to ``see``, with what it was called with; what that raises is a fault."""

        def make(call: Call) -> Call:
            def seen(*args: Any, **kwargs: Any) -> Any:
                result = call(*args, **kwargs)
                try:
                    see(result, *args, **kwargs)
                except Exception as error:  # noqa: BLE001 - see Recorder.fault
                    exporter._recorder.fault("hook", error)
                return result

            return seen

        self.wrap(kind, names, make, exporter, "after")

    def before(self, kind: Any, names: str, see: Callable[..., None], exporter: Exporter) -> None:
        """Show what each method is called with to ``see``; what that raises is a fault."""

        def make(call: Call) -> Call:
            def seen(*args: Any, **kwargs: Any) -> Any:
                try:
                    see(*args, **kwargs)
                except Exception as error:  # noqa: BLE001 - see Recorder.fault
                    exporter._recorder.fault("hook", error)
                return call(*args, **kwargs)

            return seen

        self.wrap(kind, names, make, exporter, "before")


def _is_device(device: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    try:
        found = device(*args, **kwargs)
        return found is not None and torch.device(found).type != "cpu"
    except Exception:  # noqa: BLE001 - what torch knows no device by is a matter between it and the caller
        return False


def _unwrap(kind: Any, name: str, around: Call, original: Call | None) -> None:
    if vars(kind).get(name) is around:
        if original is None:
            delattr(kind, name)
        else:
            setattr(kind, name, original)
