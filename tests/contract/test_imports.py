"""The direction of imports, which keeps training processes, agents and analyses apart."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rank_exporter

PACKAGE = Path(rank_exporter.__file__).parent

# What each part may import, besides itself. The public face names everything and imports it when it is used.
LEVELS = (
    {"errors", "phases", "histogram", "digest"},
    {"identity", "catalog"},
    {"config"},
    {"timeline", "lateness"},
    {"segment"},
    {"instrument", "agent", "analysis", "rulepack", "dashboardpack"},
    {"integrations"},
    {"dashboards_command", "demo", "doctor", "launcher", "profiling"},
    {"cli", "__main__"},
)
TORCH = {
    "instrument/backward.py",
    "instrument/data.py",
    "instrument/model.py",
    "instrument/optimizer.py",
    "demo/train.py",
}
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def part_of(module: Path) -> str:
    return module.parts[0].removesuffix(".py")


def imported(module: Path) -> Iterator[str]:
    """Absolute names of everything that a module imports, also within functions."""
    for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ("rank_exporter", *module.parts[:-1])[: len(module.parts) - node.level + 1] if node.level else ()
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("module", [module for module in MODULES if part_of(module) != "__init__"], ids=str)
def test_imports_go_one_way(module: Path) -> None:
    """A part imports itself, what lies below it, and the package's version; never its neighbours."""
    own = part_of(module)
    [level] = [number for number, parts in enumerate(LEVELS) if own in parts]
    allowed = {own, "__version__"}.union(*LEVELS[:level])
    for name in imported(module):
        if name.startswith("rank_exporter."):
            assert name.split(".")[1] in allowed, f"{module} imports {name}"


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_torch_is_imported_by_instrumentation_alone(module: Path) -> None:
    """Only the hooks, those of trainers included, and the demo's training script, need torch."""
    loads = any(name.split(".")[0] == "torch" for name in imported(module))
    assert not loads or str(module) in TORCH or module.parts[0] in ("instrument", "integrations")


@pytest.mark.parametrize("trainer", ["accelerate", "lightning", "transformers"])
def test_trainers_are_imported_by_their_integration_alone(trainer: str) -> None:
    """Nothing else needs a trainer, and what an integration is chosen by needs none either."""
    loading = {str(module) for module in MODULES if any(name.split(".")[0] == trainer for name in imported(module))}
    own = {"transformers": "huggingface"}.get(trainer, trainer)
    assert loading == {f"integrations/{own}.py"}


@pytest.mark.parametrize("package", ["segment", "agent", "analysis", "instrument", "integrations"])
def test_package_faces_import_nothing(package: str) -> None:
    """Naming one module of a package loads that module and no other."""
    assert not (PACKAGE / package / "__init__.py").read_text().strip()


def test_agent_analysis_and_cli_leave_torch_alone() -> None:
    """Importing every module outside the instrumentation loads no torch, nor does the public face."""
    modules = [
        ".".join(["rank_exporter", *module.with_suffix("").parts])
        for module in MODULES
        if part_of(module) not in ("instrument", "integrations", "__init__")
        and str(module) not in TORCH
        and "__main__" not in module.name
    ]
    program = f"import sys\nfor name in {modules}: __import__(name)\nsys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_public_names_are_the_documented_ones() -> None:
    """A change to one of these is a change to the product."""
    assert sorted(rank_exporter.__all__) == ["Exporter", "RankExporterError", "SettingError", "__version__", "start"]
    for name in rank_exporter.__all__:
        assert getattr(rank_exporter, name) is not None
    public = {name for name in vars(rank_exporter.Exporter) if not name.startswith("_")}
    assert public == {"count", "identity", "phase", "profile", "set_shard", "steps", "stop", "watch"}


def test_environment_is_read_in_one_place() -> None:
    """Only config decides by environment variables; what a process hands to its children is no decision."""
    readers = {
        str(module)
        for module in MODULES
        if any(
            isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
            for node in ast.walk(ast.parse((PACKAGE / module).read_text()))
        )
    }
    assert "config.py" in readers
    handing_on = {
        "instrument/keeper.py",
        "agent/command.py",
        "demo/processes.py",
        "demo/training.py",
        "demo/servers.py",
        "demo/train.py",
    }
    assert readers - {"config.py"} <= handing_on
