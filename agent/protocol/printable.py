"""Text of others, made safe for a terminal and a log: other agents, the store and the command line may say anything."""

from __future__ import annotations


def printable(text: str, limit: int = 200) -> str:
    """Return the text on one line, with at most `limit` characters; "…" at its end says that it was cut.

    What is not printed as itself is written as Python escapes it, such as `\\n` and `\\x1b`: line breaks, the escape
    sequences of terminals, characters that turn the direction of the text around, bytes that are not UTF-8.
    """
    if len(text) <= limit and text.isprintable():
        return text
    cut = text[: limit + 1]
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in cut)
    return shown if len(shown) <= limit and len(cut) == len(text) else shown[: limit - 1] + "…"
