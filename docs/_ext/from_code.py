"""What the pages take from the code: the command line, the policies' tables, and docstrings as the code has them.

`softrun-flags` lists the parser's flags, softrun's own or torchrun's; `softrun-policies` is the table of every policy.
The code's docstrings are plain text with `names` in backticks: they are turned into reStructuredText.
"""

from __future__ import annotations

import argparse
import re
from enum import Enum
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.parsers.rst import Directive
from pydantic import BaseModel

from softrun.agent.cli import build_parser
from softrun.policies import (
    HardRestartPolicyStrategy,
    RestartPolicyStrategy,
    SoftRestartPolicyStrategy,
    Trigger,
    WorkerFailure,
)

if TYPE_CHECKING:
    from sphinx.application import Sphinx

OWN_GROUP = "softrun"
_CODE = re.compile(r"`([^`]+)`")
_SPECIAL = re.compile(r"([\\*|])|(?<=\w)(_)(?!\w)")


class Flags(Directive):
    """`softrun-flags` with the argument `own` or `torchrun`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        wants_own = {"own": True, "torchrun": False}[self.arguments[0]]
        parser = build_parser()
        listed = nodes.definition_list()
        for group in parser._action_groups:
            for action in group._group_actions:
                if (group.title == OWN_GROUP) is wants_own and action.option_strings:
                    listed += _flag(action, parser)
        return [listed]


def _flag(action: argparse.Action, parser: argparse.ArgumentParser) -> nodes.definition_list_item:
    spelled = [name for name in action.option_strings if "_" not in name] or action.option_strings
    term = nodes.term()
    for at, name in enumerate(spelled):
        term += [nodes.Text(", ")] * (at > 0)
        term += nodes.literal(text=name)
    if action.nargs != 0:
        shown = action.metavar or (action.dest or "value").upper()
        term += [nodes.Text(" "), nodes.literal(text=str(shown))]
    text = " ".join(parser._get_formatter()._expand_help(action).split()) if action.help else ""
    described = nodes.paragraph(text=text)
    if action.nargs != 0 and action.default not in (None, "", argparse.SUPPRESS) and "efault" not in text:
        described += [nodes.Text(" Default: "), nodes.literal(text=str(action.default)), nodes.Text(".")]
    return nodes.definition_list_item("", term, nodes.definition("", described))


class Policies(Directive):
    """`softrun-policies`: what each policy answers to each trigger."""

    def run(self) -> list[nodes.Node]:
        policies: dict[str, RestartPolicyStrategy] = {"hard": HardRestartPolicyStrategy()}
        policies |= {f"soft, {variant.value}": SoftRestartPolicyStrategy(variant) for variant in WorkerFailure}
        head = ["trigger", *policies]
        rows = [[t.value, *(policy.respond(t).name for policy in policies.values())] for t in Trigger]
        return [_table(head, rows)]


def _table(head: list[str], rows: list[list[str]]) -> nodes.table:
    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]
    group += nodes.thead("", _row(head, code_from=len(head)))
    group += nodes.tbody("", *(_row(row, code_from=1) for row in rows))
    return nodes.table("", group)


def _row(cells: list[str], code_from: int) -> nodes.row:
    shown = [nodes.literal(text=c) if at >= code_from else nodes.Text(c) for at, c in enumerate(cells)]
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", cell)) for cell in shown))


def as_restructured(lines: list[str]) -> list[str]:
    """A docstring of ours as reStructuredText: indented paragraphs and tables stand as they are."""
    shown: list[str] = []
    block: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line)
        elif block:
            shown += [*_paragraph(block), ""]
            block = []
    return shown


def _paragraph(block: list[str]) -> list[str]:
    if block[0].startswith((" ", "|")):
        return ["::", "", *(f"    {line}" for line in block)]
    return [_inline(line) for line in block]


def _inline(line: str) -> str:
    """`name` becomes a literal; what reStructuredText would take for markup is escaped."""
    pieces = _CODE.split(line)
    return "".join(
        f"``{piece}``" if at % 2 else _SPECIAL.sub(lambda found: "\\" + found[0], piece)
        for at, piece in enumerate(pieces)
    )


def convert_docstring(app: Sphinx, what: str, name: str, subject: Any, options: Any, lines: list[str]) -> None:
    """autodoc's event. A pydantic model gets its fields with their descriptions as well."""
    converted = as_restructured(lines)
    if what == "class" and isinstance(subject, type) and issubclass(subject, BaseModel):
        for field_name, field in subject.model_fields.items():
            converted += [f"- ``{field_name}``" + (f": {_inline(field.description)}" if field.description else "")]
        converted.append("")
    lines[:] = converted


def hide_signature(
    app: Sphinx, what: str, name: str, subject: Any, options: Any, signature: str, returned: str
) -> tuple[str, str] | None:
    """autodoc's event: nobody but softrun makes these, and their fields or values are listed."""
    if what == "class" and isinstance(subject, type) and issubclass(subject, (BaseModel, Enum)):
        return "", ""
    return None


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx's hook."""
    app.add_directive("softrun-flags", Flags)
    app.add_directive("softrun-policies", Policies)
    app.connect("autodoc-process-docstring", convert_docstring)
    app.connect("autodoc-process-signature", hide_signature)
    return {"parallel_read_safe": True}
