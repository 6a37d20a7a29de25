"""How a block of live_workers fails."""

from __future__ import annotations


class PeerFailed(RuntimeError):  # noqa: N818 - the name that the article's readers expect beside ProcessFailureError
    """The block has succeeded on nobody: a worker was lost in it, or has raised. Every worker of the block raises.

    Nothing that the block has changed may be kept: take the same step again (`continue`).

    `failed`: the workers because of which, by name (`NODE/LOCAL_RANK`). `remote`: the tracebacks of those that have
    raised; "" if none has. `lost`: those that are not in the next world.
    """

    def __init__(self, message: str, failed: tuple[str, ...], lost: tuple[str, ...] = (), remote: str = "") -> None:
        super().__init__(message)
        self.failed, self.lost, self.remote = failed, lost, remote


class Evicted(PeerFailed):
    """The others have gone on without this node, which they took for dead: this worker comes back as a newcomer.

    What it believes of its last block is void. The next `live_workers` waits for a world with this worker in it.
    """


class CallMismatch(RuntimeError):  # noqa: N818
    """The workers have made calls that do not belong together. All of them raise this; the text names two places."""
