"""Sealing: with a job secret, each line of a link proves that it is the peer's next one.

A sealed line is `<64 hex digits> <line>`. The digits are the HMAC-SHA256 of a counter and the line, under a key that
holds for this connection and this direction only. The counter starts at 0 and is not sent, so a line that was changed,
repeated, left out or moved does not verify.
"""

from __future__ import annotations

import hmac

from softrun.agent.errors import ProtocolError
from softrun.agent.proof.proofs import seal

_DIGITS = 64


class Sealing:
    """The seals of one connection: of what is sent under one key, and of what arrives under another."""

    def __init__(self, send_key: bytes, receive_key: bytes) -> None:
        self._send_key = send_key
        self._receive_key = receive_key
        self._sent = 0
        self._received = 0

    def seal(self, line: bytes) -> bytes:
        """Return the line with the next seal. Send it before the next one is sealed."""
        sealed = seal(self._send_key, self._sent, line) + b" " + line
        self._sent += 1
        return sealed

    def open(self, sealed: bytes) -> bytes:
        """Return the line without its seal. Raises ProtocolError if it is not the peer's next one: close the link."""
        line = sealed[_DIGITS + 1 :]
        wanted = seal(self._receive_key, self._received, line) + b" "
        if not hmac.compare_digest(sealed[: _DIGITS + 1], wanted):
            raise ProtocolError("a line on it was changed, repeated or left out on the way")
        self._received += 1
        return line
