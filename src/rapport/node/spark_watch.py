"""Whether the policies that a site lets run on Spark are run there: reports are heard, and silence
is told. [PO-8, PI-5]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rapport.channel.channel import Channels
from rapport.core.errors import InvalidInput
from rapport.core.event import StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.telemetry import get_logger
from rapport.policy.engine.spark_policies import CHANNEL, REPORT_TYPE, LiveReport, SparkPolicies

_LOOK_BACK = 100
_LOOK_EVERY_MS = 5_000
_log = get_logger(__name__)


class SparkWatch:
    """Hears the reports in the channel `pipeline`."""

    def __init__(
        self,
        channels: Channels,
        on_spark: SparkPolicies,
        clock: Clock,
        running: Callable[[], Mapping[str, str]],
    ) -> None:
        """`running`: names and versions of all policies that should run."""
        self._channels, self._on_spark, self._clock = channels, on_spark, clock
        self._running = running
        self._told: set[str] = set()
        self._position = 0

    async def run(self) -> None:
        """Until cancelled."""
        self._on_spark.begin(self._clock.now_ms())
        channel = self._channels.channel(CHANNEL)
        self._position = max(channel.last_position() - _LOOK_BACK, 0)
        while True:
            await self.look()
            await channel.wait_after(self._position, timeout_ms=_LOOK_EVERY_MS)

    async def look(self) -> None:
        """Takes in what was reported since the last time; warns once of each policy that nobody
        watches.
        """
        channel = self._channels.channel(CHANNEL)
        while batch := await channel.read_after(self._position):
            self._position = batch[-1].position
            for stored in batch:
                self._hear(stored)
        unwatched = self._on_spark.problems(self._running(), self._clock.now_ms())
        for name in sorted(unwatched.keys() - self._told):
            _log.warning("policy on Spark", policy=name, reason=unwatched[name].message)
        back = sorted(self._told - unwatched.keys())
        if back:
            _log.info("watched again on Spark", policies=back)
        self._told = set(unwatched)

    def _hear(self, stored: StoredEvent) -> None:
        if stored.event.type != REPORT_TYPE:
            return
        try:
            report: LiveReport = stored.event.payload_as(LiveReport)
        except InvalidInput as error:
            _log.warning("report not understood", id=stored.event.id, reason=error.message)
            return
        self._on_spark.note_report(report, stored.received)
