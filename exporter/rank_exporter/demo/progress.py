"""What the demo is doing now, for whoever waits for it."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.markup import escape

__all__ = ["Progress"]

_PLAIN_SECONDS = 10.0


class Progress:
    """A line for each thing begun, and beneath, what changes: in place on a terminal, elsewhere now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = console.status("") if console.is_terminal else None
        self._said = 0.0

    def __enter__(self) -> Progress:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def pause(self) -> None:
        """Leave the terminal to others for good."""
        if self._live:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """Something else is being done from now on."""
        self._said = time.monotonic()
        self._console.print(escape(text), highlight=False, soft_wrap=not self._console.is_terminal)
        if self._live:
            self._live.update("")

    def status(self, text: str) -> None:
        """How it stands."""
        if self._live:
            self._live.update(escape(text))
        elif time.monotonic() - self._said >= _PLAIN_SECONDS:
            self.say(f"  {text}")
