"""The documentation: its links lead somewhere, no page is lost, and what is generated is what the code says."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import diagrams

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
MOST_WORDS = 1300  # of the README
PUBLIC = ("softrun", "softrun.runtime", "softrun.runtime.inprocess", "softrun.policies", "softrun.testing")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def links(page: Path) -> Iterator[tuple[str, str]]:
    """(path, heading) of each link that leads to a file of the checkout; an empty path is the page itself."""
    for target in _LINK.findall(_FENCE.sub("", page.read_text())):
        if "://" not in target:
            path, _, heading = target.partition("#")
            yield path, heading


def headings(page: Path) -> set[str]:
    """As links name them, on GitHub and in MyST."""
    lines = re.findall(r"^#+ (.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= MOST_WORDS
    for command in ("scripts/demo", "scripts/test"):
        assert re.search(rf"^{command} ", text, re.MULTILINE), f"the README no longer names {command}"


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for path, heading in links(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if heading:
            assert heading in headings(target), f"{page.name} links to {path}#{heading}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_every_module_that_is_named_is_there(page: Path) -> None:
    named = re.findall(r"`((?:agent|runtime|policies|scripts|tests|examples)/[\w/.]+)`", page.read_text())
    gone = [path for path in named if not (ROOT / path).exists()]
    assert not gone, f"{page.name} names {', '.join(gone)}"


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = {
        name
        for page in PAGES
        for tree in _TOCTREE.findall(page.read_text())
        for name in tree.split("\n")
        if name and not name.startswith(":")
    }
    assert listed == {page.stem for page in PAGES} - {"index"}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_reference_has_every_public_name(module: str) -> None:
    reference = (DOCS / "api.md").read_text()
    missing = [n for n in importlib.import_module(module).__all__ if not re.search(rf"[.`]{n}\b", reference)]
    assert not missing, f"docs/api.md lacks {', '.join(missing)} of {module}"


@pytest.mark.parametrize("module", ["agent/core/worker_slot.py", "runtime/inprocess/calls/call.py"])
def test_the_design_shows_the_drawings_of_the_code(module: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / module).read_text())) or ""
    drawn = [textwrap.dedent(paragraph) for paragraph in text.split("\n\n") if "──" in paragraph]
    assert drawn
    for drawing in drawn:
        assert drawing in (DOCS / "design.md").read_text(), f"docs/design.md lacks this one of {module}:\n{drawing}"


@pytest.mark.parametrize("name", sorted(diagrams.DIAGRAMS))
def test_the_diagrams_show_the_code(name: str) -> None:
    source = (diagrams.PICTURES / f"{name}.dot").read_text()
    assert source == diagrams.DIAGRAMS[name](), "run scripts/docs --pictures"
    assert diagrams.checksum(source) in (diagrams.PICTURES / f"{name}.svg").read_text(), "run scripts/docs --pictures"
