"""Runs a training script that knows nothing of the exporter, and records it.

The script runs as ``__main__`` with its own arguments; its output, traceback and exit code are what they would be.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
import types
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType
from typing import Any

from .errors import SettingError

__all__ = ["run"]

USAGE = "usage: python -m rank_exporter [-m MODULE | SCRIPT] [ARGUMENT ...]"


def run(arguments: Sequence[str]) -> None:
    """Instrument this process and run ``[-m MODULE | SCRIPT] [ARGUMENT ...]`` in it.

    Returns where the script ends normally; raises SystemExit with the script's own exit code. SettingError: there is
    nothing to run, or a setting of the exporter is wrong.
    """
    rest = list(arguments)
    as_module = rest[:1] == ["-m"]
    if as_module:
        rest.pop(0)
    if not rest or rest[0].startswith("-"):
        raise SettingError(f"there is no script in {list(arguments)}: {USAGE}")
    main = types.ModuleType("__main__")
    code = _prepare_module(main, rest) if as_module else _prepare_script(main, rest)
    _instrument()
    # The module that Python made for this one stays alive: threads and at-exit handlers may still need its names.
    launched, sys.modules["__main__"] = sys.modules["__main__"], main
    failure: BaseException | None = None
    try:
        exec(code, main.__dict__)  # noqa: S102 - running the user's script is what this is for
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - printed as Python would, and the process ends
        failure = error
    finally:
        main.__dict__["__rank_exporter_launched__"] = launched
    if failure is not None:
        _fail(failure)


class _After(MetaPathFinder):
    """Calls back once a module has been imported. Torch is not loaded before the script does so, which may set what
    torch reads as it is loaded, such as OMP_NUM_THREADS; trainers are not loaded unless it does."""

    def __init__(self, module: str, call: Callable[[], None]) -> None:
        self._module = module
        self._call = call

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                self._call()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _instrument() -> None:
    from .instrument.exporter import start  # noqa: PLC0415 - begins to record, once the arguments are right
    from .integrations.automatic import trainers  # noqa: PLC0415

    exporter = start()

    def watch() -> None:
        from .instrument.automatic import watch_everything, watch_sharded  # noqa: PLC0415 - needs torch

        watch_everything(exporter)
        if "torch.distributed.fsdp" in sys.modules:
            watch_sharded(exporter)
        else:
            sys.meta_path.insert(0, _After("torch.distributed.fsdp", lambda: watch_sharded(exporter)))

    sys.meta_path.insert(0, _After("torch", watch))
    for module, watch_trainer in trainers(exporter).items():
        sys.meta_path.insert(0, _After(module, watch_trainer))


def _prepare_script(main: types.ModuleType, arguments: list[str]) -> CodeType:
    path = Path(arguments[0])
    if not path.is_file():
        raise SettingError(f"script {arguments[0]!r} is no file: {USAGE}")
    # Not normalised, as Python itself leaves it.
    main.__file__ = os.path.join(os.getcwd(), arguments[0])  # noqa: PTH109, PTH118
    main.__dict__.update(__builtins__=builtins, __cached__=None)
    sys.argv = arguments
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(path.resolve().parent)
    with io.open_code(main.__file__) as file:
        return compile(file.read(), main.__file__, "exec")


def _prepare_module(main: types.ModuleType, arguments: list[str]) -> CodeType:
    name = arguments[0]
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except (ImportError, ValueError):
        spec = None
    loader: Any = None if spec is None else spec.loader
    code = loader.get_code(spec.name) if spec is not None and hasattr(loader, "get_code") else None
    if spec is None or code is None:
        raise SettingError(f"module {name!r} cannot be run: give the name of a module, or of a package with __main__")
    main.__file__ = spec.origin
    main.__package__ = spec.parent
    main.__dict__.update(__builtins__=builtins, __spec__=spec, __loader__=loader, __cached__=spec.cached)
    sys.argv = [str(spec.origin), *arguments[1:]]
    return code  # type: ignore[no-any-return]


def _without_outermost(error: BaseException) -> BaseException:
    """The error without the frame of ours in its traceback."""
    trace = error.__traceback__
    return error.with_traceback(None if trace is None else trace.tb_next)


def _fail(error: BaseException) -> None:
    """End as Python ends on an exception that nobody caught, without our frames in its traceback."""
    _without_outermost(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception as failure:  # noqa: BLE001 - the script's own hook
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(failure), _without_outermost(failure), failure.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        # Python itself ends the process by the signal, once all that runs at exit has run. It is printed already.
        sys.excepthook = lambda *_: None
        raise error
    raise SystemExit(1)
