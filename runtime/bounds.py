"""What workers and agents may tell each other: one table, so what one of them takes, all take.

A number beyond its bound is refused where it is written, and again by whoever reads it. A text is never refused: it is
cut, and made of characters that can be sent, by `told`. Agents check what else they say to each other in
`softrun.agent.protocol.checks`.
"""

from __future__ import annotations

LARGEST = 1 << 53
"""Of what is counted: each reader of JSON reads it exactly, and a job that counts there never ends."""
LARGEST_STEP = (1 << 63) - 1
"""The page that an agent shares with a worker has 64 bits for one."""
LONGEST_NAME = 512
"""In characters, all of them printable: of nodes, jobs, roles, and tags of live_workers."""
LONGEST_TOLD = 1 << 14
"""In characters: of a text for people that one worker sends."""
LONGEST_TEXT = 1 << 16
"""In characters: of one that an agent makes of several."""
MOST_CAUSES = 100
"""How many ranks of one world are told with their kinds of fault."""
LONGEST_WAIT_S = 3600.0
"""How long a worker's fault may have the others wait for further faults."""


def told(text: str, most: int = LONGEST_TOLD) -> str:
    """Return a text as it can be sent: the last `most` characters, each of which UTF-8 has.

    The name of a file that is not UTF-8 has others; they are written as Python escapes them.
    """
    cut = text if len(text) <= most else "…" + text[1 - most :]
    try:
        cut.encode()
    except UnicodeEncodeError:
        return told(cut.encode(errors="backslashreplace").decode(), most)
    return cut


def printed(text: str, indent: str = "    ") -> str:
    """Return a text of several lines as a log can show it: what a terminal would obey is escaped, and all lines but
    the first are indented, so that none can be taken for one of the log's own."""
    return f"\n{indent}".join(_escaped(line.expandtabs(4)) for line in text.splitlines())


def _escaped(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in line)
