"""``python -m rank_exporter.demo``: the command without the others beside it."""

from __future__ import annotations

from .command import demo

if __name__ == "__main__":
    demo(prog_name="rank-exporter demo")
