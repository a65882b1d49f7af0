"""Status of a broker, and response times as one event per interval. [CX-3, CX-4, CX-12, PI-6]"""

from __future__ import annotations

import msgspec

from rapport.context.protocol import MAX_WHY, NOT_FOUND, PROCESSED
from rapport.core.event import Event, content_id
from rapport.core.times import DurationCounts, DurationHistogram


class NeighbourStatus(msgspec.Struct, frozen=True, kw_only=True, rename={"round_trip_ms": "rtt"}):
    """A neighbour and the round trip time to it."""

    address: str
    round_trip_ms: float | None = None


class BrokerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Records, load and counters of a broker; counters since it started."""

    address: str
    neighbours: tuple[NeighbourStatus, ...] = ()
    records: int = 0
    """Its own, from providers."""
    replicas: int = 0
    replica_bytes: int = 0
    searches: int = 0
    """Pending searches."""
    watches: int = 0
    queued: int = 0
    """Updates on their way to disk."""
    load: float = 0.0
    counters: dict[str, int] = {}


def short_status(status: BrokerStatus) -> str:
    """The status in as many bytes as an answer has: counters that are 0 are left out first, then
    all counters, then far neighbours.
    """
    counters = {name: count for name, count in status.counters.items() if count}
    status = msgspec.structs.replace(status, counters=counters)
    while len(text := msgspec.json.encode(status).decode()) > MAX_WHY:
        if status.counters:
            status = msgspec.structs.replace(status, counters={})
        elif status.neighbours:
            status = msgspec.structs.replace(status, neighbours=status.neighbours[:-1])
        else:
            break
    return text


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
    """Response times of one broker since the last summary."""

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
        """The response times since the last call; none if nothing was requested."""
        since, self._since = self._since, max(wall_ms, self._since)
        if not self._answers:
            return None
        answers, self._answers = self._answers, {}
        counted = {how: one.take() for how, one in sorted(answers.items())}
        return BrokerSummary(broker=self._broker, since=since, until=self._since, answers=counted)


def _how(status: int) -> str:
    if status == PROCESSED:
        return ELSEWHERE
    return MISSING if status == NOT_FOUND else REFUSED
