"""Who may import what. The rules are the design's: they keep the engine pure and the runtime light."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PURE = {
    "agent": {
        "model",
        "observations",
        "effects",
        "liveness",
        "tenure",
        "ranks",
        "rendezvous",
        "leadership",
        "allegiance",
        "crew",
        "watch",
        "faults",
        "engine",
    },
    "policies": {"strategy", "hard", "soft"},
}
IMPURE_MODULES = {"time", "datetime", "os", "socket", "random", "subprocess", "threading", "logging"}
OWN = {"runtime": {"runtime"}, "policies": {"policies"}, "agent": {"agent", "policies", "runtime"}}
RUNTIME_THIRD_PARTY = {"pydantic", "watchdog"}


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).glob("**/*.py"))


def imports(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Each module that is imported, by its full name, and whether that happens inside a function."""
    for node, inside in _walk(tree, inside=False):
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            module = node.module or ""
            if module in ("softrun", "softrun.agent", "softrun.policies", "softrun.runtime"):
                yield from ((f"{module}.{alias.name}", inside) for alias in node.names)
            else:
                yield module, inside


def _walk(node: ast.AST, inside: bool) -> Iterator[tuple[ast.AST, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        deeper = inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield child, inside
        yield from _walk(child, deeper)


def found(path: Path) -> list[tuple[str, bool]]:
    return list(imports(ast.parse(path.read_text())))


@pytest.mark.parametrize("folder", sorted(OWN))
def test_imports_point_one_way(folder: str) -> None:
    for path in files(folder):
        for module, _ in found(path):
            top, _, rest = module.partition(".")
            if top == "softrun":
                assert rest.split(".")[0] in OWN[folder], f"{path.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize("folder", sorted(PURE))
def test_pure_modules_touch_nothing(folder: str) -> None:
    assert {path.stem for path in files(folder)} >= PURE[folder]
    for path in files(folder):
        if path.stem in PURE[folder]:
            modules = {module.split(".")[0] for module, _ in found(path)}
            assert not modules & IMPURE_MODULES, f"{path.relative_to(ROOT)} imports {modules & IMPURE_MODULES}"


def test_the_runtime_is_light() -> None:
    """It runs in a training process: the standard library, pydantic and watchdog; torch only when it is used."""
    for path in files("runtime"):
        for module, inside in found(path):
            top = module.split(".")[0]
            if top == "softrun" or top in sys.stdlib_module_names or top in RUNTIME_THIRD_PARTY:
                continue
            assert top == "torch", f"{path.relative_to(ROOT)} imports {module}"
            assert inside, f"{path.relative_to(ROOT)} imports {module} outside of a function"


def test_nobody_knows_a_store_beside_the_agent() -> None:
    for folder in ("runtime", "policies"):
        for path in files(folder):
            assert not {module.split(".")[0] for module, _ in found(path)} & {"grpc", "etcd3"}, path


def test_one_file_knows_etcd3() -> None:
    knowing = {path.name for path in files("agent") if {"grpc", "etcdrpc"} & set(re.findall(r"\w+", path.read_text()))}
    assert knowing == {"etcd_client.py"}
