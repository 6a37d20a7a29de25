"""The diagrams of the article on fault-tolerant distributed JAX, redrawn from tests/live/histories.json.

`python docs/_ext/live_pictures.py` writes docs/pictures/live/*.svg. A test holds them against what it would write.
"""

from __future__ import annotations

import json
from pathlib import Path

from softrun.testing import draw, parse_history

ROOT = Path(__file__).resolve().parents[2]
HISTORIES = ROOT / "tests/live/histories.json"
PICTURES = ROOT / "docs/pictures/live"

CAPTIONS = {
    "a01_all_three": "All three workers call, and all are answered with all three.",
    "a02_all_three_snapshot": "It is valid: at this moment all three are in the call.",
    "a03_all_three_any_moment": "Any moment between these two would do as well.",
    "a04_two_of_three": "Worker 2 is dead, and the other two are answered with themselves.",
    "a05_two_of_three_snapshot": "It is valid: at this moment both are in the call, and worker 2 is dead.",
    "a06_dies_in_call_left_out": "Worker 1 dies in its call, and is left out.",
    "a07_dies_in_call_left_out_snapshot": "It is valid: at this moment worker 1 is dead already.",
    "a08_dies_in_call_included": "Worker 1 dies in its call, and is in the answer.",
    "a09_dies_in_call_included_snapshot": "It is valid: at this moment worker 1 is still in its call.",
    "a10_dead_before_start": "Worker 1 is dead before worker 0 starts, and is in its answer.",
    "a11_dead_before_start_moved": "It is valid, because the service may learn of the failure late.",
    "a12_alive_but_left_out": "Worker 1 is alive and in its call, and is left out.",
    "a13_alive_but_left_out_moved": "It is valid, because the service may believe in the failure early.",
    "a14_restart_pins_failure": "It is not valid: the failure cannot be moved past the restart.",
    "a15_complex": "With failures that may be moved, this is valid.",
    "a16_complex_moved": "The same with its failures moved, and a moment for each answer.",
    "a17_contradictory": "It is not valid: worker 2 must be dead for one answer, and alive for a later one.",
}


def pictures() -> dict[str, str]:
    """Return the text of each picture, by the name of its history."""
    histories = {entry["name"]: entry for entry in json.loads(HISTORIES.read_text())["histories"]}
    return {name: draw(parse_history(json.dumps(histories[name])), title=caption) for name, caption in CAPTIONS.items()}


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (PICTURES / f"{name}.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
