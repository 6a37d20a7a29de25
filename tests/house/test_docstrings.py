"""Every public class and function says what it is for, or implements something that does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("agent", "policies", "runtime", "scripts/entry")
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(tree: ast.Module | ast.ClassDef, inside: str = "") -> Iterator[tuple[str, Definition]]:
    """Those that are public, by their names within the module; not those inside of functions."""
    for node in tree.body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield inside + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node, f"{node.name}.")


def every_definition() -> list[tuple[str, str, Definition]]:
    return [
        (str(path.relative_to(ROOT)), name, node)
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name, node in definitions(ast.parse(path.read_text()))
    ]


def interfaces(every: list[tuple[str, str, Definition]]) -> set[tuple[str, str]]:
    """(folder, method) of all that a Protocol or an abstract class of the package says."""
    return {
        (file.split("/")[0], method.name)
        for file, _, node in every
        if isinstance(node, ast.ClassDef)
        and {ast.unparse(base).split("[")[0] for base in node.bases} & {"Protocol", "ABC", "Process"}
        for method in node.body
        if isinstance(method, ast.FunctionDef) and ast.get_docstring(method)
    }


def test_every_public_name_says_what_it_is_for() -> None:
    every = every_definition()
    said = interfaces(every)
    silent = [
        f"{file}: {name}"
        for file, name, node in every
        if not ast.get_docstring(node) and not ("." in name and (file.split("/")[0], node.name) in said)
    ]
    assert not silent, "\n".join(silent)


def test_an_indented_paragraph_is_code_without_a_mark() -> None:
    """The pages mark it (docs/_ext/from_code.py); a mark in the docstring as well would break its code apart."""
    marked = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if line.endswith(" ::")
    ]
    assert marked == []
