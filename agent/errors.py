"""The errors that end an agent. Each message is one line that names the thing, the value and the remedy."""

from __future__ import annotations


class SoftrunError(RuntimeError):
    """The base of all errors that softrun raises to its user."""


class UsageError(SoftrunError, ValueError):
    """A flag or a setting is wrong."""


class RendezvousError(SoftrunError):
    """The nodes could not agree on a world, or are no longer able to."""


class StoreLostError(RendezvousError):
    """The store cannot be reached, or is gone."""


class ProtocolError(RendezvousError):
    """Another agent wrote what this release cannot read."""


class PreemptedError(SoftrunError):
    """The job was told to end before its work was done: start it again, and it goes on."""


class JobFailedError(SoftrunError):
    """Another node's failure ended the job."""
