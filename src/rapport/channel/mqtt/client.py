"""One connection to an MQTT broker; the only module that uses paho. [CH-12, CO-16]

paho runs in a thread of its own and passes messages to the event loop. A message is acknowledged
only by `acknowledge`: the broker keeps it until then.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import msgspec

from rapport.channel.mqtt.bridge import Broker, Packet
from rapport.core.errors import Unavailable, Unsupported

KEEP_ALIVE_SECONDS = 30
_IDLE_SECONDS, _PROBE_SECONDS, _PROBES = 3, 2, 2
DEAD_AFTER_MS = (_IDLE_SECONDS + _PROBE_SECONDS * _PROBES) * 1_000
"""A connection whose other end does not answer the system's probes is broken after so long."""
MOST_UNDER_WAY = 5_000
"""Messages taken from the broker and not yet acknowledged; a broker that sends more is cut off."""
_AT_LEAST_ONCE = 1


def check_driver() -> None:
    """Raises Unsupported when the driver is not installed."""
    if find_spec("paho") is None:
        raise Unsupported("MQTT", hint="pip install 'rapport[mqtt]'")


def _driver(broker: Broker, password: str, client_id: str, *, keeps_place: bool) -> Any:
    check_driver()
    from paho.mqtt import client as paho

    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=not keeps_place
    )
    if broker.user:
        client.username_pw_set(broker.user, password)
    if broker.secure:
        client.tls_set()
    return client


class ReceivedPacket(msgspec.Struct, frozen=True):
    packet: Packet
    quality: int


class BrokerClient:
    """Reconnects for ever, subscribes, passes on messages, publishes. Belongs to one event loop."""

    def __init__(
        self,
        broker: Broker,
        password: str,
        client_id: str,
        topics: Sequence[str] = (),
        *,
        keeps_place: bool = True,
    ) -> None:
        """`topics` are filters to subscribe to. `keeps_place`: the broker stores messages under
        `client_id` while we are away; without it any unused client id will do.
        """
        self._broker, self._topics = broker, tuple(topics)
        self._loop = asyncio.get_running_loop()
        self.arrived: asyncio.Queue[ReceivedPacket] = asyncio.Queue()
        self._published: dict[int, asyncio.Future[None]] = {}
        self.connected = asyncio.Event()
        self.trouble = "not reached yet"
        self._client = _driver(broker, password, client_id, keeps_place=keeps_place)
        self._client.manual_ack_set(True)
        self._client.reconnect_delay_set(min_delay=1, max_delay=15)
        self._client.on_socket_open = _probe_connection
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_connect_fail = self._on_connect_fail
        self._client.on_message = self._on_message
        self._client.on_publish = self._on_publish

    def start(self) -> None:
        """Begins to connect; returns at once."""
        self._client.connect_async(self._broker.host, self._broker.port, KEEP_ALIVE_SECONDS)
        self._client.loop_start()

    async def stop(self) -> None:
        """Disconnects; the broker keeps our session."""
        await asyncio.to_thread(self._stop)

    def acknowledge(self, number: int, quality: int) -> None:
        """The message is on disk: the broker may forget it."""
        self._client.ack(number, quality)

    async def publish(self, topic: str, payload: bytes) -> None:
        """Returns when the broker has it; raises Unavailable while there is none."""
        if not self.connected.is_set():
            raise Unavailable(self.trouble, code="mqtt.unreachable")
        info = self._client.publish(topic, payload, qos=_AT_LEAST_ONCE)
        if info.rc != 0:
            raise Unavailable(f"the broker took no message ({info.rc})", code="mqtt.unreachable")
        # Its answer arrives through the loop, so never before the next await.
        done = self._published[info.mid] = self._loop.create_future()
        try:
            await done
        finally:
            self._published.pop(info.mid, None)

    # --- in paho's thread -------------------------------------------------------------------------

    def _stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        # Without these the driver is freed at once, and its sockets with it.
        callbacks = ("connect", "disconnect", "connect_fail", "message", "publish", "socket_open")
        for name in callbacks:
            setattr(self._client, f"on_{name}", None)

    def _tell(self, call: Callable[..., object], *arguments: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)

    def _on_connect(self, client: Any, _data: Any, flags: Any, reason: Any, _more: Any) -> None:
        if reason.is_failure:
            self._tell(self._lost, f"the broker refuses: {reason}")
            return
        # Also when the broker kept our session: the site may ask for other topics than before. The
        # retained messages that this brings again are recognised.
        wanted = [(topic, _AT_LEAST_ONCE) for topic in self._topics]
        if wanted:
            client.subscribe(wanted)
        self._tell(self._found)

    def _on_disconnect(self, _client: Any, _data: Any, _flags: Any, reason: Any, _m: Any) -> None:
        self._tell(self._lost, f"the connection to the broker ended: {reason}")

    def _on_connect_fail(self, _client: Any, _data: Any) -> None:
        self._tell(self._lost, f"no broker at {self._broker.place}")

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        packet = Packet(
            topic=message.topic,
            payload=bytes(message.payload),
            number=message.mid,
            again=message.dup,
            retained=message.retain,
        )
        self._tell(self._take, ReceivedPacket(packet, message.qos))

    def _on_publish(self, _client: Any, _data: Any, mid: int, _reason: Any, _more: Any) -> None:
        self._tell(self._settle, mid)

    # --- in the event loop ------------------------------------------------------------------------

    def _take(self, arrived: ReceivedPacket) -> None:
        if self.arrived.qsize() >= MOST_UNDER_WAY:
            # It is not acknowledged, so the broker sends it again.
            self._lost("the broker sends faster than messages can be stored")
            self._hang_up()
            return
        self.arrived.put_nowait(arrived)

    def _hang_up(self) -> None:
        """Breaks the connection; the driver's thread notices and connects again."""
        connection = self._client.socket()
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it was broken already

    def _found(self) -> None:
        self.trouble = ""
        self.connected.set()

    def _lost(self, why: str) -> None:
        self.trouble = why
        self.connected.clear()
        for waiting in self._published.values():
            if not waiting.done():
                waiting.set_exception(Unavailable(why, code="mqtt.unreachable"))

    def _settle(self, mid: int) -> None:
        waiting = self._published.get(mid)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


def _probe_connection(_client: Any, _data: Any, connection: socket.socket) -> None:
    """Lets the system notice a cut connection, however busy this process is; a keep-alive of MQTT
    that short would lose connections when the driver's thread is late.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _IDLE_SECONDS),
        ("TCP_KEEPINTVL", _PROBE_SECONDS),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", DEAD_AFTER_MS),  # with data in flight there are no probes
    ):
        if hasattr(socket, option):  # not everywhere
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def reach_broker(broker: Broker, password: str, *, seconds: float) -> None:
    """Connects with a temporary client id, for about `seconds`; raises Unavailable, Unsupported."""
    client = _driver(broker, password, "", keeps_place=False)
    client.connect_timeout = seconds
    answered, reasons = threading.Event(), []

    def on_connect(_client: Any, _data: Any, _flags: Any, reason: Any, _more: Any) -> None:
        reasons.append(reason)
        answered.set()

    client.on_connect = on_connect
    try:
        client.connect(broker.host, broker.port, KEEP_ALIVE_SECONDS)
    except OSError as error:
        why = f"no broker at {broker.place}: {error.strerror or error}"
        raise Unavailable(why, code="mqtt.unreachable") from None
    client.loop_start()
    try:
        if not answered.wait(seconds):
            raise Unavailable(
                f"{broker.place} does not answer as a broker", code="mqtt.unreachable"
            )
        if reasons[0].is_failure:
            raise Unavailable(f"the broker refuses: {reasons[0]}", code="mqtt.unreachable")
    finally:
        client.disconnect()
        client.loop_stop()
