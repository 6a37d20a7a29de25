"""What was found: a line while it is checked, a table of it all, and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass
class Outcome:
    """Of one check."""

    check: str
    outcome: str
    """ok, failed, or not checked."""
    seconds: float
    """How long the check itself took."""
    text: str
    figures: dict[str, float] = field(default_factory=dict)

    def line(self) -> str:
        return f"{self.outcome:12} {self.check}: {self.text}"


def table(there: dict[str, str], outcomes: Sequence[Outcome]) -> str:
    """In Markdown, for the documentation."""
    rows = [("check", "outcome", "found"), ("---", "---", "---")]
    rows += [(each.check, each.outcome, each.text.splitlines()[0] if each.text else "") for each in outcomes]
    heading = ", ".join(f"{name} {value}" for name, value in there.items())
    return "\n".join([heading, "", *(f"| {' | '.join(row)} |" for row in rows)])


def write_json(path: Path, there: dict[str, str], outcomes: Sequence[Outcome]) -> None:
    path.write_text(json.dumps({"on": there, "checks": [asdict(each) for each in outcomes]}, indent=1) + "\n")
