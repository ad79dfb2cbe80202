"""The on-call engineer's end of the line: a server on the loopback that Alertmanager sends its pages to."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

__all__ = ["Alert", "Webhook"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One firing alert as it was received. ``received_at``: Unix seconds."""

    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: str = ""
    received_at: float = field(default=0.0, compare=False)

    @property
    def name(self) -> str:
        return self.labels.get("alertname", "")


class Webhook:
    """While entered, receives what Alertmanager sends to ``url`` and keeps each alert once, in order of arrival."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alerts: list[Alert] = []
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                try:
                    webhook.receive(json.loads(body), time.time())
                except (ValueError, TypeError, KeyError, AttributeError):
                    self.send_error(400)
                    return
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="webhook", daemon=True)

    def __enter__(self) -> Webhook:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self.close()

    def close(self) -> None:
        """Let go of the port; for one that was never entered."""
        self._server.server_close()

    @property
    def url(self) -> str:
        """Where Alertmanager is to post."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/page"

    def alerts(self) -> tuple[Alert, ...]:
        """The firing alerts received so far."""
        with self._lock:
            return tuple(self._alerts)

    def receive(self, message: dict[str, Any], now: float) -> None:
        """Take one message of Alertmanager's webhook format. It repeats all alerts of a group when one joins."""
        with self._lock:
            known = [alert.labels for alert in self._alerts]
            for alert in message["alerts"]:
                labels = dict(alert["labels"])
                if alert.get("status") == "firing" and labels not in known:
                    self._alerts.append(
                        Alert(
                            labels=labels,
                            annotations=dict(alert.get("annotations", {})),
                            starts_at=str(alert.get("startsAt", "")),
                            received_at=now,
                        )
                    )
