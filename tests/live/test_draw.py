"""Pictures of histories: what is in them, and that those in the documentation are what the code draws."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

import live_pictures
from live.right_service import right_history
from softrun.testing import draw, parse_history

KNOWN = json.loads(Path(__file__).with_name("histories.json").read_text())["histories"]
SVG = "{http://www.w3.org/2000/svg}"


def drawn(history: dict[str, Any], **texts: str) -> ET.Element:
    return ET.fromstring(draw(parse_history(json.dumps(history)), **texts))


def words(picture: ET.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text")]


def titles(picture: ET.Element) -> list[str]:
    return [title.text or "" for group in picture.iter(f"{SVG}g") for title in group.findall(f"{SVG}title")]


@pytest.mark.parametrize("history", KNOWN, ids=lambda history: history["name"])
def test_a_picture_of_each_history(history: dict[str, Any]) -> None:
    picture = drawn(history)
    assert picture.get("role") == "img"
    assert picture.findtext(f"{SVG}title") == history["name"]
    assert all(f"worker {worker}" in words(picture) for worker in history["procs"])
    calls = [title for title in titles(picture) if title.startswith("calls")]
    assert len(calls) == len(list(picture.iter(f"{SVG}rect"))) == sum(e["e"] == "call" for e in history["events"])
    assert sum(title.startswith("a moment") for title in titles(picture)) == len(history.get("snapshots", ()))


def test_what_happened_is_told_in_words() -> None:
    [history] = [entry for entry in KNOWN if entry["name"] == "x15_restart_in_block"]
    assert drawn(history, title="a < b").findtext(f"{SVG}title") == "a < b"
    assert drawn(history).findtext(f"{SVG}desc") == (
        "Worker 0: starts at 1, calls at 3, is answered {0, 1} at 5, calls voting ok at 9, is answered {0, 1} and that "
        "its block failed at 11. Worker 1: starts at 2, calls at 4, is answered {0, 1} at 6, fails at 7, starts at 8, "
        "calls at 10, is answered {0, 1} at 12."
    )


def test_bars_hold_their_texts() -> None:
    history = right_history(1, workers=6, events=300)
    for group in drawn(history).iter(f"{SVG}g"):
        bars = group.findall(f"{SVG}rect")
        if bars:
            room = float(bars[0].get("width", 0))
            assert sum(len(text.text or "") for text in group.findall(f"{SVG}text")) * 7 < room


def test_no_history_is_too_small_to_draw() -> None:
    assert words(drawn({"procs": [], "events": []})) == ["0", "time", "0"]


@pytest.mark.parametrize("name", sorted(live_pictures.CAPTIONS))
def test_the_pictures_of_the_documentation_are_drawn_by_the_code(name: str) -> None:
    file = live_pictures.PICTURES / f"{name}.svg"
    assert file.read_text(encoding="utf-8") == live_pictures.pictures()[name], "run scripts/docs --pictures"


def test_every_diagram_of_the_article_is_there() -> None:
    assert sorted(live_pictures.CAPTIONS) == [entry["name"] for entry in KNOWN if entry["source"] == "article"]
    assert {file.stem for file in live_pictures.PICTURES.iterdir()} == set(live_pictures.CAPTIONS)
