"""``python -m rank_exporter.agent``: how a rank starts its host's agent."""

from __future__ import annotations

from .command import agent

if __name__ == "__main__":
    agent(prog_name="rank-exporter agent")
