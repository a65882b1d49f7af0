"""Logs beside a channel's, in the same store: for what all processes that share it must agree on.
[CH-13]

They are no channels: stores do not list them. Their names hold a slash, which no channel's does.
"""

from __future__ import annotations

_TAKEN = "taken/"


def taken_log(channel: str) -> str:
    """The log of what was taken from a channel."""
    return f"{_TAKEN}{channel}"


def is_side_log(log: str) -> bool:
    """Whether a log only stands beside a channel's."""
    return log.startswith(_TAKEN)


def owner_of(log: str) -> str:
    """The channel whose store a log is in: its own, or the one it stands beside."""
    return log.removeprefix(_TAKEN)
