"""The dashboards as programs. ``python -m source``, run in the folder above, writes them as JSON to ``dashboards``."""
