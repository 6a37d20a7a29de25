"""What proves that a line comes from an agent of the job: codes under keys that are made from the job secret.

What outlives an agent proves the same (`softrun.agent.proof.testament`), and must start quickly: so this module needs
nothing but the standard library.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

GREETING = {
    "version": 0, "job": "", "node": "", "to": "", "host": "", "port": 0, "probe": False, "known": "", "nonce": ""
}  # fmt: skip
"""The dialler's first line but for its proof; these stand for what it leaves out."""
_ANSWER = ("version", "node", "host", "port", "nonce")


def transcript(greeting: Mapping[str, object], answer: Mapping[str, object]) -> bytes:
    """Return all that the two ends have told each other. No two exchanges have the same."""
    asked, answered = [str(greeting[name]) for name in GREETING], [str(answer[name]) for name in _ANSWER]
    return b"".join(map(_counted, ["softrun link", *asked, *answered]))


def of_greeting(secret: bytes, greeting: Mapping[str, object]) -> str:
    """Return what comes with a greeting: that it was made by somebody who has the secret, now or earlier."""
    return _mac(secret, "proof of the greeting", b"".join(_counted(str(greeting[name])) for name in GREETING)).hex()


def of_acceptor(secret: bytes, verdict: str, said: bytes) -> str:
    """Return the acceptor's proof; only who has the secret can tell which verdict it is."""
    return _mac(secret, f"proof of the acceptor {verdict}", said).hex()


def of_dialler(secret: bytes, said: bytes) -> str:
    """Return the dialler's proof, in answer to the acceptor's."""
    return _mac(secret, "proof of the dialler", said).hex()


def key_of_lines(secret: bytes, end: str, said: bytes) -> bytes:
    """Return the key of the lines that one end sends, the "dialler" or the "acceptor"."""
    return _mac(secret, f"key of the {end}'s lines", said)


def seal(key: bytes, number: int, line: bytes) -> bytes:
    """Return what proves, under this key, that the line is the one of this number; the first has number 0."""
    return hmac.digest(key, number.to_bytes(8, "big") + line, "sha256").hex().encode()


def same(one: str, other: str) -> bool:
    """Whether two proofs are the same; it takes as long if they are not."""
    return hmac.compare_digest(one.encode(), other.encode())


def _mac(secret: bytes, label: str, said: bytes) -> bytes:
    return hmac.digest(secret, _counted(label) + said, "sha256")


def _counted(text: str) -> bytes:
    """The text after its length, so that what follows cannot be taken for a part of it."""
    data = text.encode()
    return len(data).to_bytes(4, "big") + data
