"""Who may import what. The rules are the design's: they keep the engine pure and the runtime light."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: The rooms of each package from the ground up: a room imports from itself and from those before it. "" is the
#: package's own folder; a module that stands there by name is on the floor where it is listed.
ROOMS = {
    "policies": [""],
    "runtime": [
        "clock",
        "bounds",
        "events",
        "recurrence",
        "calls",
        "steplog",
        "channel",
        "interrupt",
        "groups",
        "nccl",
        "preemption",
        "worker",
        "share",
        "sampler",
        "worlds",
        "live",
        "snapshots",
        "state",
        "inprocess",
        "integrations",
    ],
    "agent": [
        "errors",
        "protocol",
        "consensus",
        "rendezvous",
        "live",
        "core",
        "proof",
        "links",
        "store",
        "torch_elastic",
        "workers",
        "snapshots",
        "loop",
        "",
    ],
    "testing": [
        "history",
        "timeline",
        "scene",
        "search",
        "verdict",
        "checker",
        "lives",
        "recorder",
        "record",
        "draw",
        "",
    ],
}
#: Where a package stands if not in the folder of its name.
FOLDERS = {"testing": "scripts/entry/testing"}
PURE = ["agent/protocol", "agent/consensus", "agent/rendezvous", "agent/live", "agent/core", "policies"]
IMPURE_MODULES = {"time", "datetime", "os", "socket", "random", "subprocess", "threading", "logging"}
OWN = {
    "runtime": {"runtime"},
    "policies": {"policies"},
    "agent": {"agent", "policies", "runtime"},
    "testing": {"testing", "runtime"},
}
RUNTIME_THIRD_PARTY = {"pydantic", "watchdog"}
TESTING_THIRD_PARTY = {"pydantic"}
MOST_MODULES = 16  # in one folder


def home(folder: str) -> Path:
    package, *inside = folder.split("/")
    return ROOT.joinpath(FOLDERS.get(package, package), *inside)


def files(folder: str) -> list[Path]:
    return sorted(home(folder).glob("**/*.py"))


def imports(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Each module that is imported, by its full name, and whether that happens inside a function."""
    for node, inside in _walk(tree, inside=False):
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
            yield from {(name if _is_own(name) else module, inside) for name in names}


def _is_own(name: str) -> bool:
    """Whether it is a module or a package of the checkout."""
    path = home("/".join(name.split(".")[1:]))
    return name.startswith("softrun.") and (path.is_dir() or path.with_suffix(".py").is_file())


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


def room_of(package: str, inside: list[str]) -> int:
    """The floor of a module, by the names that lead to it from its package."""
    rooms = ROOMS[package]
    return rooms.index(inside[0]) if inside and inside[0] in rooms else rooms.index("")


@pytest.mark.parametrize("package", sorted(ROOMS))
def test_no_arrow_runs_back_up_between_rooms(package: str) -> None:
    for path in files(package):
        parts = [*path.relative_to(home(package)).with_suffix("").parts]
        if parts == ["__init__"]:
            continue
        for module, _ in found(path):
            top, _, inside = module.removeprefix("softrun.").partition(".")
            if module.startswith("softrun.") and top == package and inside:
                floor = room_of(package, inside.split("."))
                assert floor <= room_of(package, parts), f"{path.relative_to(ROOT)} imports {module}"


def test_there_is_no_cycle() -> None:
    graph = {
        _name(top, path): {m for m, _ in found(path) if m.startswith("softrun.")} for top in OWN for path in files(top)
    }
    graph = {name: {m if m in graph else m.rpartition(".")[0] for m in wanted} for name, wanted in graph.items()}
    while leaves := [name for name, wanted in graph.items() if not wanted & set(graph)]:
        for name in leaves:
            del graph[name]
    assert not graph, f"these import one another: {sorted(graph)}"


def _name(top: str, path: Path) -> str:
    parts = path.relative_to(home(top)).with_suffix("").parts
    return ".".join(("softrun", top, *(part for part in parts if part != "__init__")))


def test_no_folder_holds_more_than_one_can_look_over() -> None:
    for top in OWN:
        for folder in {path.parent for path in files(top)}:
            assert len(list(folder.glob("*.py"))) <= MOST_MODULES, folder


@pytest.mark.parametrize("folder", PURE)
def test_pure_rooms_touch_nothing(folder: str) -> None:
    assert files(folder)
    for path in files(folder):
        modules = {module.split(".")[0] for module, _ in found(path)}
        assert not modules & IMPURE_MODULES, f"{path.relative_to(ROOT)} imports {modules & IMPURE_MODULES}"


def test_the_runtime_is_light() -> None:
    """It runs in a training process: the standard library, pydantic and watchdog; torch only when it is used, and the
    library that an integration is for."""
    for path in files("runtime"):
        for module, inside in found(path):
            top = module.split(".")[0]
            if top == "softrun" or top in sys.stdlib_module_names or top in RUNTIME_THIRD_PARTY:
                continue
            assert top == "torch" or top == path.stem, f"{path.relative_to(ROOT)} imports {module}"
            assert inside, f"{path.relative_to(ROOT)} imports {module} outside of a function"


def test_the_checker_needs_no_torch() -> None:
    for path in files("testing"):
        tops = {module.split(".")[0] for module, _ in found(path)}
        strange = tops - set(sys.stdlib_module_names) - TESTING_THIRD_PARTY - {"softrun"}
        assert not strange, f"{path.relative_to(ROOT)} imports {strange}"


def test_nobody_knows_a_store_beside_the_agent() -> None:
    for folder in ("runtime", "policies"):
        for path in files(folder):
            assert not {module.split(".")[0] for module, _ in found(path)} & {"grpc", "etcd3"}, path


def test_one_file_knows_etcd3() -> None:
    knowing = {path.name for path in files("agent") if {"grpc", "etcdrpc"} & set(re.findall(r"\w+", path.read_text()))}
    assert knowing == {"etcd_client.py"}


def test_agents_have_one_clock() -> None:
    """But for what answers after its agent has ended: it imports next to nothing, and judges nobody."""
    others = {
        path.name for path in files("agent") if re.search(r"monotonic|perf_counter|time\.time\(", path.read_text())
    }
    assert others == {"testament.py"}
