"""Parts that end in order, each of them whatever became of the one before it. [UX-5]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)

Ending = tuple[str, Callable[[], Awaitable[object] | None]]
"""A part's name, for the log, and what ends it."""


async def end_each(parts: Iterable[Ending]) -> None:
    """Ends all parts, one after the other. What one raises is logged with its name; the first such
    error is raised when all have been asked to end.

    A caller that is cancelled meanwhile breaks off the part that is ending, not those after it, and
    is told in the end: a node that is stopped in haste still closes its log.
    """
    first: Exception | None = None
    cancelled: asyncio.CancelledError | None = None
    for name, end in parts:
        try:
            await _ended(end)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception as error:
            first = first or error
            _log.error("not ended as it should", part=name, error=repr(error))
    if cancelled is not None:
        raise cancelled
    if first is not None:
        raise first


async def _ended(end: Callable[[], Awaitable[object] | None]) -> None:
    ending = end()
    if ending is not None:
        await ending
