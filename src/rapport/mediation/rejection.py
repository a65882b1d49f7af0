"""Why an event could not be given a meaning. [ME-7, ME-11]"""

from __future__ import annotations

import msgspec

from rapport.core.event import Event
from rapport.kernel.worker_client import CallFailed


class Rejected(CallFailed):
    """Raised inside a transformer; never leaves it. `code` is API and counted."""


class Rejection(msgspec.Struct, frozen=True):
    """A raw event and why it has no meaning yet; `interpretation` is `name@version` or empty."""

    code: str
    message: str
    hint: str
    event: Event
    position: int
    interpretation: str = ""
