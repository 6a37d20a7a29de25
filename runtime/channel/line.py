"""The line: a socket in a channel's directory, on which the worker's calls and their replies are packets.

Each packet is one call or one reply (`softrun.runtime.calls`), so neither end keeps half a message. The agent makes the
socket when it makes the channel; a worker connects with its first call.
"""

from __future__ import annotations

import os
import socket

from softrun.runtime.calls import MOST_BYTES, Call, Reply, pack_call, read_reply
from softrun.runtime.channel.directory import ChannelError, PrivateDirectory

NAME = "calls"


def listen(directory: PrivateDirectory) -> socket.socket:
    """Return the agent's listening socket, which does not block. Raises ChannelError if it cannot be made."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(directory.short(NAME))
        listener.listen()
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ChannelError(
            f"no socket can be made in {directory.path} ({error.strerror or error}): set SOFTRUN_CHANNEL_ROOT to an "
            "empty directory of yours on a local file system, with a short path"
        ) from error
    return listener


def is_of_this_user(connection: socket.socket) -> bool:
    """Whether the other end runs as the user of this process."""
    size = 3 * 4  # pid, uid, gid
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int.from_bytes(credentials[4:8], "little") == os.geteuid()


class Line:
    """The worker's end. Raises ChannelError if there is no agent at the other end."""

    def __init__(self, directory: PrivateDirectory) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._packet = bytearray(MOST_BYTES)  # kept: to get so much room costs five times what a packet does
        try:
            self._socket.connect(directory.short(NAME))
        except OSError as error:
            self._socket.close()
            raise ChannelError(
                f"this worker's agent takes no calls ({error.strerror or error}): it is gone, or its log says why"
            ) from error

    def ask(self, call: Call) -> Reply:
        """Make a call and wait for its reply. Replies to calls that were given up meanwhile are skipped."""
        try:
            self._socket.send(pack_call(call))
            while size := self._socket.recv_into(self._packet):
                number, reply = read_reply(self._packet[:size])
                if number == call.number:
                    return reply
        except OSError as error:
            raise ChannelError(f"the call could not be made ({error.strerror})") from error
        raise ChannelError("this worker's agent has closed its line: is it gone?")

    def close(self) -> None:
        """Make no more calls."""
        self._socket.close()
