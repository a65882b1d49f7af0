"""The WebSocket of a channel: several subscriptions and publishing over one connection. [CH-12,
CH-17, CH-14, CH-15]

One JSON object per frame in both directions; docs/reference/endpoints.md and the AsyncAPI document
describe the protocol. An error frame answers a fault and ends nothing else. Frames are handled one
at a time, so the connection slows down a client that sends faster than the disk. A subscription
pushes batches as far as its credit goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from rapport.channel.log.sequences import counted_in
from rapport.channel.requests.request import DEFAULT_LEASE_MINUTES, Request
from rapport.channel.requests.source import ChannelFollower, FollowedSet
from rapport.core.codec import check_value_count, decode_cloudevents
from rapport.core.errors import Conflict, InvalidInput, RapportError, Unavailable, UnknownName
from rapport.core.event import StoredEvent
from rapport.core.json_objects import ObjectDecoder
from rapport.kernel.tasks import first_of
from rapport.kernel.telemetry import get_logger
from rapport.node.node import Node
from rapport.web.cloudevents import append_events, check_not_reserved, check_payloads
from rapport.web.endpoint import Connection, require_right
from rapport.web.event_view import ConsumerView, EventTextCache
from rapport.web.problems import problem_members, unexpected_members

LONGEST_ID = 64
MOST_CREDIT = 1_000_000
Ref = str | int | None


class Subscribe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query, start and credit of a subscription."""

    id: str = ""
    """The client's name for the subscription, unique in its socket."""
    query: str | dict[str, Any] | None = None
    """A condition (text) or a template (object); everything when left out."""
    kind: str = ""
    interpretation: str = ""
    """With a query: whose words it is in, and in which the events come."""
    token: str = ""
    """Instead of a query: `current_token` gives that batch again, `next_token` what follows it."""
    seen: bool = False
    """With `current_token`: its batch is here already."""
    after: int = 0
    """With a query: begins after this position."""
    from_start: bool = True
    """False begins with the next event to arrive."""
    credit: int | None = None
    """Batches that may be sent before more credit is given; left out: as fast as they are read."""
    max_batch: int = 0
    """Most events in a batch; 0 = the source's default."""
    max_time_range_ms: int = 0
    lease_minutes: int = DEFAULT_LEASE_MINUTES
    handback: str = ""
    """A text that comes back with every batch."""


class ClientFrame(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A frame of a client: exactly one of the first five members."""

    subscribe: Subscribe | None = None
    credit: int | None = None
    """More batches for the subscription `id`."""
    unsubscribe: str | None = None
    publish: msgspec.Raw = msgspec.Raw()
    """An array of CloudEvents, appended all or none."""
    ping: msgspec.Raw = msgspec.Raw()
    id: str = ""
    """With `credit`: which subscription."""
    ref: Ref = None
    """Comes back with the answer."""


_BAD_FRAME, _NOT_A_FRAME = "this frame cannot be understood", "socket.bad_frame"
_HINT = 'send an object such as {"subscribe": {"id": "a", "query": "type = \'badge.seen\'"}}'
_READ = ObjectDecoder(ClientFrame, fault=_BAD_FRAME, code=_NOT_A_FRAME, hint=_HINT)
_VERBS = ("subscribe", "credit", "unsubscribe", "publish", "ping")


def read_frame(text: str | bytes) -> tuple[str, ClientFrame]:
    """A frame and which verb it has; raises InvalidInput."""
    frame = _READ.decode(text)
    verbs = [verb for verb in _VERBS if _is_there(getattr(frame, verb))]
    if len(verbs) != 1:
        message = f"{_BAD_FRAME}: it needs exactly one of {', '.join(_VERBS)}"
        raise InvalidInput(message, code=_NOT_A_FRAME, hint=_HINT)
    return verbs[0], frame


def _is_there(value: Any) -> bool:
    return bool(bytes(value)) if isinstance(value, msgspec.Raw) else value is not None


def check_subscribe(subscribe: Subscribe) -> None:
    """Raises InvalidInput for values out of bounds; the source checks queries and tokens."""
    if len(subscribe.id) > LONGEST_ID:
        raise InvalidInput(
            f"the id of a subscription has at most {LONGEST_ID} characters",
            code="socket.bad_subscription",
        )
    if subscribe.credit is not None:
        check_credit(subscribe.credit)
    if not 0 <= subscribe.after < 2**63:
        raise InvalidInput(
            f"there is no position {subscribe.after}",
            code="socket.bad_subscription",
            hint="a number from 0 on",
        )


def check_credit(credit: int) -> None:
    """Raises InvalidInput for a credit that is none."""
    if not 0 <= credit <= MOST_CREDIT:
        raise InvalidInput(
            f"{credit} is no credit", code="socket.bad_credit", hint=f"0 to {MOST_CREDIT} batches"
        )


def as_request(subscribe: Subscribe) -> Request:
    """The subscription as a request to the source."""
    query = {} if subscribe.query is None and not subscribe.token else subscribe.query
    return Request(
        query=query,
        kind=subscribe.kind,
        interpretation=subscribe.interpretation,
        token=subscribe.token,
        seen=subscribe.seen,
        from_start=subscribe.from_start,
        max_messages=subscribe.max_batch,
        max_time_range_ms=subscribe.max_time_range_ms,
        lease_minutes=subscribe.lease_minutes,
        handback=subscribe.handback,
    )


def frame_text(members: dict[str, Any]) -> str:
    return msgspec.json.encode(members).decode()


Send = Callable[[str], Awaitable[None]]


class Credit:
    """How many batches may still be sent; None = as many as the connection carries."""

    def __init__(self, batches: int | None) -> None:
        self._left = batches
        self._given = asyncio.Event()

    def give(self, batches: int) -> None:
        """Adds credit; a subscription without a limit has one from then on."""
        self._left = min((self._left or 0) + batches, MOST_CREDIT)
        self._given.set()

    async def take(self) -> None:
        """Uses up one batch, waiting until there is credit for it."""
        while self._left is not None and self._left < 1:
            self._given.clear()
            await self._given.wait()
        if self._left is not None:
            self._left -= 1


class Subscription:
    """Pushes what a following gives. Nothing is read before there is credit for it, and nothing
    more before the last batch has left: memory holds one batch, however slow the reader.
    """

    def __init__(
        self,
        id: str,
        channel: str,
        identity: str,
        following: ChannelFollower,
        credit: Credit,
        wording: ConsumerView,
    ) -> None:
        self.id, self.credit = id, credit
        self._channel, self._identity, self._following = channel, identity, following
        self._wording = wording
        head: dict[str, str] = {"id": id}
        if following.handback:
            head["handback"] = following.handback
        self._head = msgspec.json.encode(head).decode()[:-1]

    async def run(self, encoded: EventTextCache, send: Send) -> None:
        """Sends batches until the query's end or until it is cancelled."""
        while True:
            await self.credit.take()
            followed = await self._next_batch(send)
            if followed is None:
                await send(frame_text({"end": self.id, "position": self._following.reach}))
                return
            events = await self._wording.delivered(followed)
            await send(f"{self._head},{self._tail(encoded, followed, events)}")

    async def _next_batch(self, send: Send) -> FollowedSet | None:
        """The next set that is a batch; gaps before and within it are sent on the way, and cost no
        credit.
        """
        while (followed := await self._following.next_set()) is not None:
            for gap in followed.gaps:
                await send(frame_text({"id": self.id, "gap": gap}))
            if followed.chosen.events or followed.gone:
                return followed
        return None

    def _tail(
        self, encoded: EventTextCache, followed: FollowedSet, events: Sequence[StoredEvent]
    ) -> str:
        """What all subscriptions of one identity, query and place have in common."""
        chosen, following = followed.chosen, self._following
        key = (
            *(self._channel, self._identity, following.query.kind, following.query.text),
            *(following.limits.messages, following.limits.time_range_ms, following.handback),
            *(chosen.after, chosen.through, chosen.reach, len(chosen.events), followed.gone),
            self._wording.stamp,
        )
        if following.has_own_session or not self._wording.is_shared:
            return self._written(encoded, followed, events)
        return encoded.whole(key, lambda: self._written(encoded, followed, events))

    def _written(
        self, encoded: EventTextCache, followed: FollowedSet, events: Sequence[StoredEvent]
    ) -> str:
        current, following = self._following.tokens(followed)
        gone = ',"gone":true' if followed.gone else ""
        return (
            f'"batch":[{encoded.joined(self._channel, events, self._wording.stamp)}],'
            f'"position":{followed.chosen.reach},'
            f'"current_token":"{current}","next_token":"{following}"{gone}}}'
        )


_log = get_logger(__name__)

MOST_CONNECTIONS = 2_000
"""Sockets and streams of a node at once; each holds one batch at most."""
MOST_SUBSCRIPTIONS = 64
"""Of one socket."""
MOST_FAULTS = 100
"""Frames in a row that made no sense before the socket is closed."""
GOING_AWAY, POLICY = 1012, 1008


class PushConnections:
    """Shared state of sockets and streams: texts of events, and the number of connections."""

    def __init__(self, node: Node) -> None:
        self.node, self.encoded = node, EventTextCache()
        self._connected = 0

    def enter(self) -> None:
        """Counts a connection in; raises Unavailable when there are too many."""
        self.check_room()
        self.join()

    def check_room(self) -> None:
        """Raises Unavailable when too many are connected; a stream asks while it can still be
        refused, and joins when it begins.
        """
        if self._connected >= MOST_CONNECTIONS:
            raise Unavailable(
                f"{MOST_CONNECTIONS} readers are connected already",
                code="web.too_many_readers",
                retry_after_seconds=5,
                hint="read by requests meanwhile",
            )

    def join(self) -> None:
        """Counts a connection that passed `check_room`; concurrent ones may exceed the limit."""
        self._connected += 1

    def leave(self) -> None:
        self._connected -= 1


class Socket:
    """The connection of one admitted client."""

    def __init__(self, channel: str, live: PushConnections, connection: Connection) -> None:
        self._channel, self._live, self._connection = channel, live, connection
        self._node = live.node
        self._running: dict[str, tuple[Subscription, asyncio.Task[None]]] = {}
        self._faults = 0

    async def serve(self) -> None:
        """Serves the client until it disconnects or the node closes."""
        accept: Any = {"type": "websocket.accept", "subprotocol": None, "headers": []}
        try:
            await self._connection.send(accept)
            await first_of(self._listen(), self._node.closing.wait())
            code = GOING_AWAY if self._node.closing.is_set() else POLICY
            await self._close(code)
        except OSError:
            _log.debug("a socket's client has gone", channel=self._channel)
        finally:
            await self._end_all()

    async def _listen(self) -> None:
        """Takes frames until the client goes (raises) or has made too many faults (returns)."""
        while self._faults < MOST_FAULTS:
            message: Any = await self._connection.receive()
            if message["type"] == "websocket.disconnect":
                raise ConnectionResetError
            if message["type"] == "websocket.receive":
                await self._receive(message.get("text") or message.get("bytes") or "")

    async def _receive(self, text: str | bytes) -> None:
        ref: Ref = None
        try:
            verb, frame = read_frame(text)
            ref = frame.ref
            answer = await getattr(self, f"_on_{verb}")(frame)
            self._faults = 0
        except RapportError as error:
            self._faults += 1
            answer = {"error": problem_members(error)}
        except Exception as error:  # a fault of ours: reported without inner details
            _log.exception("a frame failed", channel=self._channel, exc_info=error)
            answer = {"error": unexpected_members()}
        if answer is not None:
            await self._send(frame_text(answer | ({} if ref is None else {"ref": ref})))

    # --- verbs ------------------------------------------------------------------------------------

    async def _on_subscribe(self, frame: ClientFrame) -> dict[str, Any] | None:
        subscribe: Subscribe | None = frame.subscribe
        assert subscribe is not None
        check_subscribe(subscribe)
        self._check_room(subscribe.id)
        identity = require_right(self._connection, self._node, "subscribe", self._channel)
        following = await self._node.channels.source.follow(
            self._channel, as_request(subscribe), identity=identity, after=subscribe.after
        )
        credit = Credit(subscribe.credit)
        wording = ConsumerView(self._node, self._channel, identity, following)
        subscription = Subscription(
            subscribe.id, self._channel, identity, following, credit, wording
        )
        confirmation: dict[str, Any] = {"subscribed": subscribe.id, "position": following.reach}
        await self._send(
            frame_text(confirmation | ({} if frame.ref is None else {"ref": frame.ref}))
        )
        task = asyncio.create_task(self._push(subscription), name=f"socket {subscribe.id}")
        self._running[subscribe.id] = (subscription, task)
        return None  # confirmed above, before the first batch

    def _check_room(self, id: str) -> None:
        if id in self._running:
            raise Conflict(
                f"a subscription {id!r} is running already",
                code="socket.duplicate_subscription",
                hint="unsubscribe it first, or choose another id",
            )
        if len(self._running) >= MOST_SUBSCRIPTIONS:
            raise InvalidInput(
                f"a socket has at most {MOST_SUBSCRIPTIONS} subscriptions",
                code="socket.too_many_subscriptions",
                hint="open another socket",
            )

    async def _on_credit(self, frame: ClientFrame) -> dict[str, Any] | None:
        assert frame.credit is not None
        check_credit(frame.credit)
        self._found(frame.id)[0].credit.give(frame.credit)
        return None

    async def _on_unsubscribe(self, frame: ClientFrame) -> dict[str, Any]:
        assert frame.unsubscribe is not None
        task = self._found(frame.unsubscribe)[1]
        del self._running[frame.unsubscribe]
        await _cancelled(task)
        return {"unsubscribed": frame.unsubscribe}

    async def _on_publish(self, frame: ClientFrame) -> dict[str, Any]:
        identity = require_right(self._connection, self._node, "publish", self._channel)
        check_not_reserved(self._channel)
        body = bytes(frame.publish)
        check_value_count(body)
        events = decode_cloudevents(body, received_ms=self._node.clock.now_ms())
        check_payloads(events)
        counted = counted_in(self._channel, events)
        answer = await append_events(self._node, self._channel, counted, identity=identity)
        return {"published": msgspec.Raw(answer)}

    async def _on_ping(self, frame: ClientFrame) -> dict[str, Any]:
        return {"pong": frame.ping}

    def _found(self, id: str) -> tuple[Subscription, asyncio.Task[None]]:
        found = self._running.get(id)
        if found is None:
            raise UnknownName("subscription", id, list(self._running), code="socket.unknown")
        return found

    # --- pushing ----------------------------------------------------------------------------------

    async def _push(self, subscription: Subscription) -> None:
        """Runs a subscription to its end; a fault becomes an error frame, the socket goes on."""
        try:
            await subscription.run(self._live.encoded, self._send)
        except OSError:
            return  # the client has gone; the listening side notices too
        except RapportError as error:
            await self._send_end(subscription.id, problem_members(error))
        except Exception as error:
            _log.exception("a subscription failed", channel=self._channel, exc_info=error)
            await self._send_end(subscription.id, unexpected_members())
        if self._running.get(subscription.id, (None,))[0] is subscription:
            del self._running[subscription.id]

    async def _send_end(self, id: str, problem: dict[str, Any]) -> None:
        try:
            await self._send(frame_text({"error": problem, "id": id}))
        except OSError:
            _log.debug("a socket's client has gone", channel=self._channel)

    async def _send(self, text: str) -> None:
        """Returns when the connection has room for more."""
        frame: Any = {"type": "websocket.send", "text": text}
        await self._connection.send(frame)

    async def _close(self, code: int) -> None:
        frame: Any = {"type": "websocket.close", "code": code, "reason": ""}
        await self._connection.send(frame)

    async def _end_all(self) -> None:
        running, self._running = self._running, {}
        for _subscription, task in running.values():
            await _cancelled(task)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))
