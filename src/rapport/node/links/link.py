"""One link at work: pulls from and hands over to one neighbour, channel by channel. [CH-11]

A cut heals by itself: each channel is tried again with growing pauses and goes on at its saved
place. What one channel cannot do does not hold back the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

import msgspec

from rapport.channel.federation import (
    Link,
    LinkPosition,
    LinkReceiver,
    neighbour_condition,
    not_passed,
    position_after,
    position_for,
    request_at,
    start_position,
)
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.query.query_kinds import make_query
from rapport.core.errors import Corrupt, RapportError, TooLarge
from rapport.core.event import Event, Gap, clip_gaps
from rapport.kernel.chance import Chance
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import Tasks
from rapport.kernel.telemetry import get_logger
from rapport.node.links.neighbour import Neighbour, PlaceRefused
from rapport.node.links.status import ChannelStatus
from rapport.store.base import Put

_log = get_logger(__name__)

PLACES = "link_places"
MOST_EVENTS = 1_000
_MOST_BYTES = 4 * 1024 * 1024
"""Of data in one request: half of what a node takes if its site does not say otherwise."""
_LOOK_AGAIN_MS = 2_000
"""How often new channels on either side are looked for."""
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 200, 5_000


class LinkParts(msgspec.Struct, frozen=True, kw_only=True):
    """What every link of a node uses."""

    node: str
    clock: Clock
    chance: Chance
    channels: LoggedChannels
    receiver: LinkReceiver


class RunningLink:
    """See the module. `status` is kept current per channel and direction."""

    def __init__(self, link: Link, token: str, parts: LinkParts) -> None:
        self.link, self._parts = link, parts
        self._neighbour = Neighbour(link.url, token)
        self._tasks = Tasks(parts.clock)
        self.peer = ""
        self.trouble = "not reached yet"
        self.status: dict[tuple[str, str], ChannelStatus] = {}
        self._begun: set[tuple[str, str]] = set()
        self._gaps_until: dict[str, int] = {}

    async def run(self) -> None:
        """Greets the neighbour and keeps one task per shared channel; ends when cancelled."""
        failures = 0
        try:
            while True:
                try:
                    hello = await self._neighbour.hello()
                    self._meet(hello.node)
                    self._share(hello.channels)
                    self.trouble, failures = "", 0
                    await self._parts.clock.sleep(_LOOK_AGAIN_MS)
                except RapportError as error:
                    self.trouble = error.message
                    failures += 1
                    await self._pause(failures)
        finally:
            self._begun.clear()  # run again after a failure, it begins them again
            await self._tasks.stop()

    async def close(self) -> None:
        """Closes the connections."""
        await self._neighbour.close()

    # --- which channels ---------------------------------------------------------------------------

    def _meet(self, node: str) -> None:
        if node == self._parts.node:
            raise Corrupt(
                f"the link {self.link.name!r} leads to this node itself", code="link.to_itself"
            )
        if self.peer and node != self.peer:
            _log.warning("another node answers", link=self.link.name, was=self.peer, now=node)
        self.peer = node

    def _share(self, offered: list[str]) -> None:
        for channel in offered:
            local = self.link.kept_as(channel)
            if local is not None:
                self._begin("receive", channel, partial(self._pull, channel, local))
        for channel in self._parts.channels.names():
            if self.link.is_sent(channel):
                self._begin("send", channel, partial(self._push, channel))

    def _begin(self, way: str, channel: str, work: Callable[[], Awaitable[None]]) -> None:
        if (way, channel) in self._begun:
            return
        self._begun.add((way, channel))
        self.status.setdefault((way, channel), ChannelStatus())
        self._tasks.start(f"link {self.link.name} {way} {channel}", work)

    # --- taking in --------------------------------------------------------------------------------

    async def _pull(self, channel: str, local: str) -> None:
        status, key = self.status["receive", channel], f"{self.link.name}/{channel}"
        wanted = neighbour_condition(self._parts.node, self.link.query)
        place = position_for(await self._saved(key), wanted, self.link.interpretation)
        failures = 0
        while True:
            try:
                place = await self._pull_once(channel, local, place, key, status)
                failures, status.trouble = 0, ""
            except PlaceRefused as error:
                # It began anew. So do we; what we have is recognised.
                _log.warning("link begins again", link=key, why=error.message)
                place = start_position(place)
                failures += 1
                await self._pause(failures)
            except RapportError as error:
                status.trouble = error.message
                failures += 1
                await self._pause(failures)

    async def _pull_once(
        self, channel: str, local: str, place: LinkPosition, key: str, status: ChannelStatus
    ) -> LinkPosition:
        asked = request_at(place, most=MOST_EVENTS)
        arrival = await self._neighbour.request(channel, asked, self._parts.clock.now_ms())
        if arrival.events:
            came = await self._parts.receiver.take_in(local, self.peer, arrival.events)
            status.count(came)
        status.gone += arrival.received.gone
        self._note_gaps(channel, arrival.gaps, status)
        reached = position_after(place, arrival.received)
        if reached != place:
            saved = Put(PLACES, key, msgspec.msgpack.encode(reached))
            await self._parts.channels.apply((saved,))
        return reached

    def _note_gaps(self, channel: str, gaps: Sequence[Gap], status: ChannelStatus) -> None:
        """Counts and logs each gap of the neighbour's log once, however often it is asked for."""
        for gap in clip_gaps(gaps, self._gaps_until.get(channel, 0) + 1):
            self._gaps_until[channel] = gap.last
            status.unreadable += gap.last - gap.first + 1
            _log.warning(
                "the neighbour could not read events",
                link=self.link.name,
                channel=channel,
                first=gap.first,
                last=gap.last,
                reason=gap.reason,
            )

    async def _saved(self, key: str) -> LinkPosition | None:
        raw = await self._parts.channels.look(lambda records: records.get(PLACES, key))
        try:
            return msgspec.msgpack.decode(raw, type=LinkPosition) if raw else None
        except msgspec.DecodeError:
            _log.warning("link place unreadable; beginning again", link=key)
            return None

    # --- handing over -----------------------------------------------------------------------------

    async def _push(self, channel: str) -> None:
        status, failures = self.status["send", channel], 0
        matches = make_query("sql", self.link.query).matches if self.link.query else None
        while True:
            try:
                # Opened anew after a failure: it goes on after what is committed.
                reader = await self._parts.channels.subscribe(channel, f"link:{self.link.name}")
                while True:
                    batch = await reader.next_batch(limit=MOST_EVENTS)
                    given = not_passed(batch, self.peer)
                    if matches is not None:
                        given = [one for one in given if matches(one)]
                    for part in parts_of([one.event for one in given]):
                        await self._hand_over(channel, part)
                        status.forwarded += len(part)
                    if batch:
                        await reader.commit(batch[-1].position)
                    failures, status.trouble = 0, ""
            except RapportError as error:
                status.trouble = error.message
                failures += 1
                await self._pause(failures)

    async def _hand_over(self, channel: str, events: list[Event]) -> None:
        """In as many requests as the neighbour's own limits ask for."""
        try:
            await self._neighbour.hand_over(channel, self._parts.node, events)
        except TooLarge:
            if len(events) == 1:
                raise
            middle = len(events) // 2
            await self._hand_over(channel, events[:middle])
            await self._hand_over(channel, events[middle:])

    async def _pause(self, failures: int) -> None:
        grown = min(_FIRST_PAUSE_MS * 2 ** min(failures - 1, 20), _LONGEST_PAUSE_MS)
        await self._parts.clock.sleep(int(grown * (0.5 + self._parts.chance.random() / 2)))


def parts_of(events: list[Event], most_bytes: int = _MOST_BYTES) -> Iterator[list[Event]]:
    """The events in their order, in parts that one request can carry; a larger one is alone."""
    part: list[Event] = []
    size = 0
    for event in events:
        if part and size + len(event.data) > most_bytes:
            yield part
            part, size = [], 0
        part.append(event)
        size += len(event.data)
    if part:
        yield part
