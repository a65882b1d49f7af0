"""Knowledge on record: versions as events of the channel `knowledge`, and as readings of the
sources that the site ties to them. [EN-14]
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.federation import Append
from rapport.core.errors import InvalidInput
from rapport.core.event import CAUSE, Event, cause_text
from rapport.core.ids import content_id
from rapport.core.knowledge import KNOWLEDGE, Knowledge
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of
from rapport.kernel.telemetry import get_logger
from rapport.mediation.source_bindings import RAW_PREFIX
from rapport.node.ensemble_inbox import Inbox, Thinning
from rapport.site.ensemble_ties import ReadingsTie

CHANNEL = "knowledge"

_log = get_logger(__name__)


class KnowledgeRecord:
    """Writes down what components said. What fails is tried again by who runs it."""

    def __init__(
        self,
        channels: Channels,
        append: Append,
        clock: Clock,
        *,
        source: str,
        record_ms: int = 0,
        readings: Sequence[ReadingsTie] = (),
    ) -> None:
        """`append`: how raw events get in, so that they are mediated."""
        self.inbox = Inbox()
        self.recorded = self.refused = 0
        """Versions on record; those that channels do not take, such as of an impossible name."""
        self._channel, self._append, self._clock = channels.channel(CHANNEL), append, clock
        self._source, self._readings = source, readings
        self._thinning = Thinning(record_ms)

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            due_ms = self._thinning.next_due_ms()
            if due_ms is None:
                await self.inbox.wait()
            else:
                wait_ms = max(0.0, due_ms - self._now_ms())
                await first_of(self.inbox.wait(), self._clock.sleep(wait_ms))
            await self.step(self.inbox.take_all())

    async def step(self, versions: list[Knowledge]) -> None:
        """Writes down what may pass now; all of it waits again when that fails."""
        passing = self._thinning.take(versions, self._now_ms())
        if not passing:
            return
        try:
            await self._write(passing)
        except BaseException:
            self.inbox.put_back(passing)
            raise

    async def _write(self, versions: Sequence[Knowledge]) -> None:
        """All of them, or one by one those that can be."""
        try:
            events = [one.to_event(source=self._source) for one in versions]
            await self._channel.append(events)
            for tie in self._readings:
                chosen = [reading_event(one, tie.source) for one in versions if tie.of.fits(one)]
                if chosen:
                    await self._append(RAW_PREFIX + tie.source, chosen)
        except InvalidInput as error:
            if len(versions) > 1:
                for one in versions:
                    await self._write([one])
                return
            self.refused += 1
            name = versions[0].component[:80]
            _log.warning("knowledge not recorded", component=name, reason=error.message)
            return
        self.recorded += len(versions)

    def _now_ms(self) -> float:
        return self._clock.steady_ns() / 1e6


def reading_event(knowledge: Knowledge, source: str) -> Event:
    """A version as a source's own event: its values, with `component`, `node` and `created_ms`."""
    own = {
        "component": knowledge.component,
        "node": knowledge.node,
        "created_ms": knowledge.created_ms,
    }
    said = knowledge.to_event(source=source).id
    return Event(
        source=source,
        id=content_id("reading", source, said),
        type=KNOWLEDGE,
        subject=knowledge.component,
        time=knowledge.created_ms,
        data=msgspec.json.encode({**knowledge.values, **own}),
        headers={CAUSE: cause_text(said)},
    )
