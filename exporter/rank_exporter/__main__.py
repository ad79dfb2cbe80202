"""``python -m rank_exporter train.py …``: train as ever, recorded."""

from __future__ import annotations

import sys

from .errors import RankExporterError
from .launcher import run

if __name__ == "__main__":
    try:
        run(sys.argv[1:])
    except RankExporterError as error:
        sys.exit(f"rank-exporter: {error}")
