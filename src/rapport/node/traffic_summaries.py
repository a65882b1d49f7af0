"""Once a minute a summary of the broker's or ensemble node's traffic in the channel
`overlay.summaries`: the log has figures of the traffic instead of the traffic. [PI-6, EN-14, CX-12]
"""

from __future__ import annotations

from collections.abc import Callable

from rapport.channel.channel import Channels
from rapport.channel.validation import SUMMARIES
from rapport.core.errors import RapportError
from rapport.core.event import Event
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger

EVERY_MS = 60_000
_MOST_UNWRITTEN = 60

_log = get_logger(__name__)


class Summaries:
    """Appends what somebody counted. A killed node loses the counts of its last minute."""

    def __init__(self, channels: Channels, clock: Clock, take: Callable[[], Event | None]) -> None:
        """`take` returns the counts since its last call, None when there are none."""
        self._channel, self._clock, self._take = channels.channel(SUMMARIES), clock, take
        self._unwritten: list[Event] = []

    async def run(self) -> None:
        """Works until cancelled; after a failed write the task is restarted."""
        while True:
            await self._clock.sleep(EVERY_MS)
            await self.step()

    async def step(self) -> None:
        """Appends what is there now; of what could not be appended before, the last hour's."""
        if (event := self._take()) is not None:
            self._unwritten = [*self._unwritten, event][-_MOST_UNWRITTEN:]
        if self._unwritten:
            await self._channel.append(self._unwritten)
            self._unwritten = []

    async def finish(self) -> None:
        """Appends the rest before closing; a failure is only logged."""
        try:
            await self.step()
        except RapportError as error:
            _log.warning("the last summary is lost", code=error.code, reason=error.message)
