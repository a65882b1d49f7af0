"""A WebSocket on a channel: several subscriptions and publishing over one connection.
[CH-12, CH-14, CH-15]

A fault is answered by an error frame and ends nothing but what it is about. Frames are taken one at
a time: who sends faster than the disk is held back by the connection itself.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from litestar.connection import ASGIConnection

from rapport.channel.log.sequences import counted_in
from rapport.core.codec import decode_cloudevents
from rapport.core.errors import Conflict, InvalidInput, RapportError, Unavailable, UnknownName
from rapport.kernel.tasks import first_of
from rapport.kernel.telemetry import get_logger
from rapport.node.node import Node
from rapport.web.bodies import check_value_count
from rapport.web.callers import allow
from rapport.web.live.encoding import EncodedEvents
from rapport.web.live.frames import (
    ClientFrame,
    Ref,
    Subscribe,
    as_request,
    check_credit,
    check_subscribe,
    read_frame,
    to_text,
)
from rapport.web.live.subscription import Credit, Subscription
from rapport.web.problems import problem_members, unexpected_members
from rapport.web.publishing import append_events, check_not_reserved, check_payloads
from rapport.web.terms import Wording

_log = get_logger(__name__)

MOST_CONNECTIONS = 2_000
"""Sockets and streams of a node at once; each holds one batch at most."""
MOST_SUBSCRIPTIONS = 64
"""Of one socket."""
MOST_FAULTS = 100
"""Frames in a row that made no sense before the socket is closed."""
GOING_AWAY, POLICY = 1012, 1008


class Live:
    """What the pushing doors of a node share: texts of events, and how many are connected."""

    def __init__(self, node: Node) -> None:
        self.node, self.encoded = node, EncodedEvents()
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
        """Counts in who was let pass before; those that pass at once may be a few too many."""
        self._connected += 1

    def leave(self) -> None:
        """Counts it out."""
        self._connected -= 1


class Socket:
    """One client's connection, once the doorkeeper let it in."""

    def __init__(
        self, channel: str, live: Live, connection: ASGIConnection[Any, Any, Any, Any]
    ) -> None:
        self._channel, self._live, self._connection = channel, live, connection
        self._node = live.node
        self._running: dict[str, tuple[Subscription, asyncio.Task[None]]] = {}
        self._faults = 0

    async def serve(self) -> None:
        """Speaks with the client until it goes or the doors close."""
        accept: Any = {"type": "websocket.accept", "subprotocol": None, "headers": []}
        try:
            await self._connection.send(accept)
            await first_of(self._listen(), self._node.doors_close.wait())
            code = GOING_AWAY if self._node.doors_close.is_set() else POLICY
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
                await self._take(message.get("text") or message.get("bytes") or "")

    async def _take(self, text: str | bytes) -> None:
        ref: Ref = None
        try:
            verb, frame = read_frame(text)
            ref = frame.ref
            answer = await getattr(self, f"_on_{verb}")(frame)
            self._faults = 0
        except RapportError as error:
            self._faults += 1
            answer = {"error": problem_members(error)}
        except Exception as error:  # a fault of ours: told without inner details
            _log.exception("a frame failed", channel=self._channel, exc_info=error)
            answer = {"error": unexpected_members()}
        if answer is not None:
            await self._send(to_text(answer | ({} if ref is None else {"ref": ref})))

    # --- verbs ------------------------------------------------------------------------------------

    async def _on_subscribe(self, frame: ClientFrame) -> dict[str, Any] | None:
        asked: Subscribe | None = frame.subscribe
        assert asked is not None
        check_subscribe(asked)
        self._check_room(asked.id)
        identity = allow(self._connection, self._node, "subscribe", self._channel)
        following = await self._node.channels.source.follow(
            self._channel, as_request(asked), identity=identity, after=asked.after
        )
        credit = Credit(asked.credit)
        wording = Wording(self._node, self._channel, identity, following)
        subscription = Subscription(asked.id, self._channel, identity, following, credit, wording)
        told: dict[str, Any] = {"subscribed": asked.id, "position": following.reach}
        await self._send(to_text(told | ({} if frame.ref is None else {"ref": frame.ref})))
        task = asyncio.create_task(self._push(subscription), name=f"socket {asked.id}")
        self._running[asked.id] = (subscription, task)
        return None  # told above, before the first batch

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
        identity = allow(self._connection, self._node, "publish", self._channel)
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
        """Runs a subscription to its end; what it meets is told, the socket goes on."""
        try:
            await subscription.run(self._live.encoded, self._send)
        except OSError:
            return  # the client has gone; the listening side notices too
        except RapportError as error:
            await self._tell_end(subscription.id, problem_members(error))
        except Exception as error:
            _log.exception("a subscription failed", channel=self._channel, exc_info=error)
            await self._tell_end(subscription.id, unexpected_members())
        if self._running.get(subscription.id, (None,))[0] is subscription:
            del self._running[subscription.id]

    async def _tell_end(self, id: str, problem: dict[str, Any]) -> None:
        try:
            await self._send(to_text({"error": problem, "id": id}))
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
