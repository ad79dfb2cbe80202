"""A training process as the agent sees it: a segment, and a process that lives, stops or dies.

Takes one JSON object a line on standard input, does what it says and answers "done"; ends with its input.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from rank_exporter.identity import Identity
from rank_exporter.phases import Phase
from rank_exporter.segment.layout import WORDS_OFFSET, Word, pack_phase
from rank_exporter.segment.writer import SegmentWriter


def main() -> None:
    writer: SegmentWriter | None = None
    for line in sys.stdin:
        order = json.loads(line)
        name = order.pop("order")
        if name == "create":
            directory = Path(order.pop("directory"))
            writer = SegmentWriter.create(directory, Identity(**order), skew_budget_ratio=0.1)
        elif name == "step":
            spent = [0] * len(Phase)
            for phase, ns in order.items():
                spent[Phase[phase.upper()]] = ns
            writer.commit(spent, time.monotonic_ns())
        elif name == "phase":
            writer.words[writer.phase_word] = pack_phase(Phase[order["phase"].upper()], time.monotonic_ns())
        elif name == "begin_commit":
            writer.words[WORDS_OFFSET // 8 + Word.SEQUENCE] += 1
        elif name == "close":
            writer.close()
        print("done", flush=True)


if __name__ == "__main__":
    main()
