"""Which trainers are recorded without a word in the script, and when: once the script has loaded them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ..instrument.exporter import Exporter

__all__ = ["trainers"]


def trainers(exporter: Exporter) -> dict[str, Callable[[], None]]:
    """What to call after which module has been imported. A trainer that cannot be recorded is counted as an error."""

    def guarded(watch: Callable[[], None]) -> Callable[[], None]:
        def guard() -> None:
            try:
                watch()
            except Exception as error:  # noqa: BLE001 - see Recorder.fault
                exporter._recorder.fault("hook", error)

        return guard

    def accelerate() -> None:
        from .accelerate import watch_everything  # noqa: PLC0415 - the script has it, others need not

        watch_everything(exporter)

    def huggingface() -> None:
        from .huggingface import watch_everything  # noqa: PLC0415

        watch_everything(exporter)

    def lightning(package: str) -> Callable[[], None]:
        def watch() -> None:
            from .lightning import watch_everything  # noqa: PLC0415

            watch_everything(exporter, package)

        return watch

    def fabric(package: str) -> Callable[[], None]:
        def watch() -> None:
            from .fabric import watch_everything  # noqa: PLC0415

            watch_everything(exporter, import_module(f"{package}.fabric").Fabric)

        return watch

    return {
        "accelerate.accelerator": guarded(accelerate),
        "transformers.trainer": guarded(huggingface),
        "lightning.pytorch.trainer.trainer": guarded(lightning("lightning.pytorch")),
        "pytorch_lightning.trainer.trainer": guarded(lightning("pytorch_lightning")),
        "lightning.fabric.fabric": guarded(fabric("lightning.fabric")),
        "lightning_fabric.fabric": guarded(fabric("lightning_fabric")),
    }
