"""Checks for arguments of callbacks, at once, so that the traceback shows the line to change."""

from __future__ import annotations

from datetime import timedelta


def check_count(name: str, value: object, least: int) -> None:
    """Raises TypeError or ValueError unless `value` is an integer of at least `least`. `name` is the argument with its
    owner, like "RetryController: max_iterations"."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {shown(value)}; pass a whole number, {least} or more")
    if value < least:
        raise ValueError(f"{name} is {value}; pass {least} or more")


def check_duration(name: str, value: object) -> None:
    """Raises TypeError or ValueError unless `value` is a timedelta above 0."""
    if not isinstance(value, timedelta):
        seconds = value if isinstance(value, (int, float)) and not isinstance(value, bool) else 30
        raise TypeError(f"{name} is {shown(value)}; pass a datetime.timedelta, like timedelta(seconds={seconds})")
    if value <= timedelta(0):
        raise ValueError(f"{name} is {value.total_seconds():g} s; pass a timedelta above 0")


def check_callable(name: str, value: object, wanted: str) -> None:
    """Raises TypeError unless `value` can be called; `wanted` says what to pass."""
    if not callable(value):
        raise TypeError(f"{name} is {shown(value)}, which cannot be called; pass {wanted}")


def check_instance(name: str, value: object, types: tuple[type, ...], wanted: str) -> None:
    """Raises TypeError unless `value` is of one of `types`; `wanted` says what to pass."""
    if not isinstance(value, types):
        raise TypeError(f"{name} is {shown(value)}; pass {wanted}")


def shown(value: object) -> str:
    """A value as errors show it: with its type, on one line, at most 80 characters."""
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 80 else text[:79] + '…'} ({type(value).__name__})"
