"""How long a broker takes to answer: counted as answers go out, and told as one event for a stretch
of time. [CX-12, PI-6]
"""

from __future__ import annotations

import msgspec

from rapport.context.messages import NOT_FOUND, PROCESSED
from rapport.core.event import Event
from rapport.core.ids import content_id
from rapport.core.times import DurationCounts, DurationHistogram

BROKER_SUMMARY = "rapport.context.summary"
HERE, ELSEWHERE, MISSING, REFUSED = "here", "elsewhere", "not_found", "refused"


class BrokerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker answered between `since` and `until`: in microseconds by its own clock, from
    having the request until its answer was sent.
    """

    broker: str
    """Its address."""
    since: int
    until: int
    answers: dict[str, DurationCounts]
    """By what the answer was: `here` (it had the record), `elsewhere` (another had it),
    `not_found`, or `refused`.
    """

    def to_event(self, *, source: str) -> Event:
        """As an event of the channel `overlay.summaries`."""
        data = msgspec.json.encode(self)
        return Event(
            source=source,
            id=content_id(BROKER_SUMMARY, source, data.decode()),
            type=BROKER_SUMMARY,
            subject=self.broker,
            time=self.until,
            data=data,
        )


class ResponseTimes:
    """The answers of one broker since somebody last asked."""

    def __init__(self, broker: str, wall_ms: int) -> None:
        self._broker, self._since = broker, wall_ms
        self._answers: dict[str, DurationHistogram] = {}

    def note(self, status: int, hops: int, took_ms: float) -> None:
        """A request was answered; costs less than a microsecond."""
        how = HERE if status == PROCESSED and not hops else _how(status)
        known = self._answers.get(how)
        if known is None:
            known = self._answers[how] = DurationHistogram()
        known.add(int(took_ms * 1_000))

    def take(self, wall_ms: int) -> BrokerSummary | None:
        """What was answered since the last time; none: nothing was asked."""
        since, self._since = self._since, max(wall_ms, self._since)
        if not self._answers:
            return None
        answers, self._answers = self._answers, {}
        told = {how: one.take() for how, one in sorted(answers.items())}
        return BrokerSummary(broker=self._broker, since=since, until=self._since, answers=told)


def _how(status: int) -> str:
    if status == PROCESSED:
        return ELSEWHERE
    return MISSING if status == NOT_FOUND else REFUSED
