"""Links to neighbouring nodes: events received from them and sent to them. [CH-11]

One of the two users of httpx2 in this package; the other is `push.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from rapport.channel.federation import (
    WAIT_MS,
    IntakeResult,
    Link,
    LinkPosition,
    LinkReceiver,
    NeighbourBatch,
    check_node_id,
    neighbour_condition,
    not_passed,
    position_after,
    position_for,
    request_at,
    start_position,
)
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.query.query_kinds import make_query
from rapport.core.codec import decode_cloudevent, to_cloudevent
from rapport.core.errors import Corrupt, NotAllowed, RapportError, TooLarge, Unavailable
from rapport.core.event import Event, Gap, clip_gaps
from rapport.core.urls import without_password
from rapport.kernel.clock import Chance, Clock
from rapport.kernel.tasks import Tasks, close_all
from rapport.kernel.telemetry import get_logger
from rapport.store.base import Put

T = TypeVar("T")

MOST_ANSWER_BYTES = 64 * 1024 * 1024
_TIMEOUT_SECONDS = WAIT_MS / 1_000 + 10
HELLO_LIMIT_MS = 3_000
_PLACE = ("position", "received", "handback")
"""Members with the event's position at the neighbour; they are not part of the event."""


class PositionRefused(RapportError):
    """The neighbour does not know its own token: its data are others than before."""

    code = "link.place_refused"


class NodeIntroduction(msgspec.Struct, frozen=True):
    """The neighbour's identity, and the channels that this node may read."""

    node: str
    channels: list[str]
    site: str = ""


class Arrival(msgspec.Struct, frozen=True):
    """One answer of a neighbour's source side."""

    events: list[Event]
    received: NeighbourBatch
    gaps: tuple[Gap, ...] = ()


class _Batch(msgspec.Struct):
    events: list[msgspec.Raw]
    current_token: str
    next_token: str | None = None
    gone: bool = False
    gaps: tuple[Gap, ...] = ()


class Neighbour:
    """Sends requests; raises Unavailable without an answer of a node, NotAllowed without the right,
    TooLarge for more than it takes at once, and other RapportErrors by the neighbour's answer.
    """

    def __init__(self, url: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._url = url
        self._client = httpx2.AsyncClient(
            headers=headers, timeout=_TIMEOUT_SECONDS, follow_redirects=False, trust_env=False
        )

    async def hello(self) -> NodeIntroduction:
        """The neighbour's identity. Also shows that the link works, so it must come soon."""
        try:
            async with asyncio.timeout(HELLO_LIMIT_MS / 1_000):
                raw = await self._exchange("GET", "/federation")
        except TimeoutError:
            raise Unavailable(
                f"no node answers at {without_password(self._url)} in time", code="link.unreachable"
            ) from None
        hello = _decoded(raw, NodeIntroduction)
        check_node_id(hello.node)
        return hello

    async def request(self, channel: str, request: dict[str, Any], now_ms: int) -> Arrival:
        """The answer to a request for messages."""
        path = f"/channels/{quote(channel, safe='')}/requests"
        batch = _decoded(await self._exchange("POST", path, request), _Batch)
        events = [_as_event(raw, now_ms) for raw in batch.events]
        received = NeighbourBatch(batch.current_token, batch.next_token, batch.gone)
        return Arrival(events, received, batch.gaps)

    async def hand_over(self, channel: str, node: str, events: Sequence[Event]) -> None:
        """Gives events; they are on the neighbour's disk when it returns."""
        path = f"/federation/channels/{quote(channel, safe='')}/events"
        body = {"node": node, "events": [to_cloudevent(event) for event in events]}
        await self._exchange("POST", path, body)

    async def close(self) -> None:
        await self._client.aclose()

    async def _exchange(self, method: str, path: str, body: Any = None) -> bytes:
        content = None if body is None else msgspec.json.encode(body)
        headers = {} if content is None else {"Content-Type": "application/json"}
        try:
            async with self._client.stream(
                method, self._url + path, content=content, headers=headers
            ) as response:
                raw = await _bounded(response)
                status = response.status_code
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            why = str(error)[:200] or type(error).__name__
            raise Unavailable(
                f"no node answers at {without_password(self._url)}: {why}", code="link.unreachable"
            ) from None
        if status != 200:
            raise _neighbour_error(status, raw)
        return raw


async def _bounded(response: Any) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.aiter_bytes():
        size += len(piece)
        if size > MOST_ANSWER_BYTES:
            raise Unavailable("the answer is larger than any of a node", code="link.strange_answer")
        pieces.append(piece)
    return b"".join(pieces)


def _decoded(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unavailable(
            "what answers at this address is not a node", code="link.strange_answer"
        ) from None


def _as_event(raw: msgspec.Raw, now_ms: int) -> Event:
    event = decode_cloudevent(bytes(raw), received_ms=now_ms)
    headers = {name: text for name, text in event.headers.items() if name not in _PLACE}
    return msgspec.structs.replace(event, headers=headers)


def _neighbour_error(status: int, raw: bytes) -> RapportError:
    try:
        problem = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {}
    message = str(problem.get("detail", f"the neighbour answered {status}"))
    code = str(problem.get("title", f"http.{status}"))
    if code.startswith("token."):
        return PositionRefused(message)
    if status in (401, 403):
        return NotAllowed(message, code=code, hint=str(problem.get("hint", "")))
    if status == 413:
        return TooLarge(message, code=code)
    return Unavailable(message, code=code)


class ChannelStatus(msgspec.Struct):
    """Counts since the node started; `trouble` is empty while all is well."""

    stored: int = 0
    known: int = 0
    passed: int = 0
    refused: int = 0
    forwarded: int = 0
    gone: int = 0
    unreadable: int = 0
    """Positions that the neighbour could not read."""
    trouble: str = ""
    last: int = 0
    """The last exchange in ms, also one that showed nothing new."""
    more: bool = False
    """The neighbour has more than was received so far."""

    def count(self, came: IntakeResult) -> None:
        self.stored += came.stored
        self.known += came.known
        self.passed += came.passed
        self.refused += came.refused


class LinkStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One row of `rapport links`."""

    link: str
    url: str
    peer: str
    way: str
    channel: str
    counts: ChannelStatus
    reached: int = 0
    """When the other end of a link answered last, in ms."""


_log = get_logger(__name__)

PLACES = "link_places"
MOST_EVENTS = 1_000
_MOST_BYTES = 4 * 1024 * 1024
"""Of data in one request: half of a node's default limit."""
HELLO_EVERY_MS = 2_000
"""How often a working link is checked, and new channels on either side are looked for."""
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
        self.last_hello = 0
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
                    self.last_hello = self._parts.clock.now_ms()
                    await self._parts.clock.sleep(HELLO_EVERY_MS)
                except RapportError as error:
                    self.trouble = error.message
                    failures += 1
                    await self._pause(failures)
        finally:
            self._begun.clear()  # run again after a failure, it begins them again
            await self._tasks.stop()

    async def close(self) -> None:
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
                # After a failure an answer at once shows that the link works again.
                wait_ms = 0 if failures else WAIT_MS
                place = await self._pull_once(channel, local, place, key, status, wait_ms)
                failures, status.trouble = 0, ""
            except PositionRefused as error:
                # It began anew. So do we; known events are recognised.
                _log.warning("link begins again", link=key, why=error.message)
                place = start_position(place)
                failures += 1
                await self._pause(failures)
            except RapportError as error:
                status.trouble = error.message
                failures += 1
                await self._pause(failures)

    async def _pull_once(
        self,
        channel: str,
        local: str,
        place: LinkPosition,
        key: str,
        status: ChannelStatus,
        wait_ms: int,
    ) -> LinkPosition:
        request = request_at(place, most=MOST_EVENTS, wait_ms=wait_ms)
        arrival = await self._neighbour.request(channel, request, self._parts.clock.now_ms())
        status.last = self._parts.clock.now_ms()
        status.more = bool(arrival.events) and arrival.received.next_token is not None
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
        """Counts and logs each gap of the neighbour's log once."""
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
                # Opened anew after a failure: it goes on after its committed position.
                reader = await self._parts.channels.subscribe(channel, f"link:{self.link.name}")
                while True:
                    batch = await reader.next_batch(limit=MOST_EVENTS)
                    given = not_passed(batch, self.peer)
                    if matches is not None:
                        given = [one for one in given if matches(one)]
                    for part in parts_of([one.event for one in given]):
                        await self._hand_over(channel, part)
                        status.forwarded += len(part)
                        status.last = self._parts.clock.now_ms()
                    if batch:
                        await reader.commit(batch[-1].position)
                    failures, status.trouble = 0, ""
            except RapportError as error:
                status.trouble = error.message
                failures += 1
                await self._pause(failures)

    async def _hand_over(self, channel: str, events: list[Event]) -> None:
        """In as many requests as the neighbour's limits need."""
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


class Links:
    """The node's neighbours; `parts.receiver` also serves the federation endpoint."""

    def __init__(self, links: Sequence[tuple[Link, str]], parts: LinkParts) -> None:
        self._running = [RunningLink(link, token, parts) for link, token in links]
        self._tasks = Tasks(parts.clock)
        self.node, self.receiver = parts.node, parts.receiver

    def start(self) -> None:
        """Begins to share; unreachable neighbours are tried again for ever."""
        for running in self._running:
            self._tasks.start(f"link {running.link.name}", running.run)

    async def stop(self) -> None:
        """Stops; pending batches are requested again at the next start."""
        links = [(f"links.{running.link.name}", running.close) for running in self._running]
        await close_all([("links.tasks", self._tasks.stop), *links])

    def status(self) -> list[LinkStatus]:
        """One row per link, direction and channel; a link that was not reached yet has one."""
        return [row for running in self._running for row in _rows(running)]


def _rows(running: RunningLink) -> list[LinkStatus]:
    shared = running.status or {("", ""): ChannelStatus()}
    rows = []
    for (way, channel), counts in shared.items():
        shown = counts
        if running.trouble and not counts.trouble:
            shown = msgspec.structs.replace(counts, trouble=running.trouble)
        rows.append(
            LinkStatus(
                link=running.link.name,
                url=without_password(running.link.url),
                peer=running.peer,
                way=way,
                channel=channel,
                counts=shown,
                reached=running.last_hello,
            )
        )
    return rows
