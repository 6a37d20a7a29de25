"""What a loop does with the files that have become ready."""

from __future__ import annotations

import selectors


def handle_ready(selector: selectors.BaseSelector, timeout: float | None) -> set[object]:
    """Wait at most `timeout` seconds, and call the handler of each file that is ready. Returns what they return.

    A handler may end what another one waits for: a worker's exit closes the pipe on which its function would have
    returned. A file that has left the selector meanwhile is left alone, although it was ready in the same moment.
    """
    returned = set()
    for key, mask in selector.select(timeout):
        now = selector.get_map().get(key.fd)
        if now is not None and (now.fileobj, now.data) == (key.fileobj, key.data):
            returned.add(key.data(mask))
    return returned
