"""The package that is installed is the one in the checkout, whole, and its public names are what the list says."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import softrun

ROOT = Path(__file__).parent.parent.parent
FOLDERS = {
    "softrun": "scripts/entry",
    "softrun/agent": "agent",
    "softrun/policies": "policies",
    "softrun/runtime": "runtime",
}


def test_the_wheel_holds_every_module(tmp_path: Path) -> None:
    # Built from a copy: a `build` folder in the checkout would keep renamed modules alive.
    source = tmp_path / "source"
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    for name in files:
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("softrun-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        f"{package}/{path.relative_to(ROOT / folder)}"
        for package, folder in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert packed == expected


def test_the_type_checkers_tree_mirrors_the_installed_shape() -> None:
    links = {path.name: path.resolve() for path in (ROOT / "tests/typing/softrun").iterdir()}
    wanted = {name: ROOT / name for name in ("agent", "policies", "runtime")}
    wanted |= {path.name: path for path in (ROOT / "scripts/entry").iterdir() if path.name != "__pycache__"}
    assert links == wanted


def test_editors_look_where_the_type_checker_looks() -> None:
    settings = (ROOT / "pyproject.toml").read_text()
    [mypys] = re.findall(r"^mypy_path = (.*)$", settings, re.MULTILINE)
    [editors] = re.findall(r"^extraPaths = (.*)$", settings, re.MULTILINE)
    assert set(ast.literal_eval(mypys)) <= set(ast.literal_eval(editors))


def test_the_public_names() -> None:
    assert softrun.__all__ == sorted(softrun.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name))
    for name in softrun.__all__:
        assert name.isupper() or getattr(softrun, name).__module__.startswith("softrun.")
    source = ast.parse((ROOT / "scripts/entry/__init__.py").read_text())
    typed = {
        alias.name
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("softrun")
        for alias in node.names
    }
    assert typed == set(softrun.__all__), "what type checkers see"
    with pytest.raises(AttributeError, match="no_such_name"):
        importlib.import_module("softrun").no_such_name  # noqa: B018


def test_the_entry_points() -> None:
    assert {point.name for point in entry_points(group="softrun.policies")} >= {"hard", "soft"}
    (script,) = entry_points(group="console_scripts", name="softrun")
    assert callable(script.load())


def test_the_version_is_the_installed_one() -> None:
    assert softrun.__version__ == version("softrun")
