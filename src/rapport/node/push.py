"""Push subscriptions of a node: created and ended by requests, kept in the records, delivered
concurrently by HTTP. [CH-2, CH-12]

Each subscription is one task that waits cheaply and holds a batch only while sending it. Sending
goes through a bounded number of slots; failing receivers share a few of their own, so they never
delay the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import httpx2
import msgspec

from rapport.channel.access.identities import Rights
from rapport.channel.dead_letters import append_dead_letter
from rapport.channel.log.channels import LoggedChannels
from rapport.channel.push import (
    LONGEST_WSDL,
    AwaitMessages,
    EndPush,
    PausePush,
    PushDelivery,
    PushFailure,
    PushForm,
    PushStep,
    PushSubscription,
    PushTrouble,
    SendMessages,
    SubscriberSink,
    after_empty,
    after_failure,
    after_sent,
    after_waiting,
    check_address,
    find_sink,
    forget_push,
    is_document,
    is_refused_for_good,
    lease_minutes_left,
    load_pushes,
    next_step,
    renewed,
    save_push,
    signed_headers,
)
from rapport.channel.requests.request import LONGEST_WAIT_MS, Batch, Request
from rapport.channel.requests.request import write_batch as write_json_batch
from rapport.channel.requests.tokens import token_digest
from rapport.channel.xmessages.envelope import (
    HANDLE,
    MEDIA_TYPES,
    SOAP_11,
    SOAP_12,
    XMESSAGES,
    write_envelope,
)
from rapport.channel.xmessages.messages import write_batch as write_xml_batch
from rapport.channel.xmessages.messages import write_gaps
from rapport.core.errors import ChannelUnavailable, InvalidInput, RapportError, SourceUnavailable
from rapport.core.xml import XmlNode, parse_xml
from rapport.kernel.clock import Chance, Clock, ClockJumpGuard
from rapport.kernel.tasks import cancel_until_done, first_of, run_blocking
from rapport.kernel.telemetry import get_logger

MOST_PUSHES = 1_000
DEADLINE_MS = 10_000
"""For one batch, from connecting to the answer: a receiver that hangs costs no more."""
_SLOTS, _DOUBTFUL_SLOTS = 16, 4
"""Batches being sent at once, to receivers in good standing and to the others."""
_MINUTE_MS = 60_000
_log = get_logger(__name__)


class _Running(msgspec.Struct):
    """A subscription and the task that serves it."""

    delivery: PushDelivery
    task: asyncio.Task[None] | None = None
    wake: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    saving: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


class PushSubscriptions:
    """Answers pull and push requests, and delivers pushed batches. All calls
    belong to one event loop.
    """

    def __init__(
        self,
        channels: LoggedChannels,
        clock: Clock,
        rights: Rights,
        *,
        allowed: tuple[str, ...] = (),
        chance: Chance,
        secret: str = "",
        deadline_ms: int = DEADLINE_MS,
    ) -> None:
        """`allowed` is the site's list of addresses. With a `secret` every body is signed; for both
        see channel/push.py.
        """
        self._channels, self._clock, self._rights = channels, clock, rights
        self._time = ClockJumpGuard(clock)
        self._allowed, self._chance = allowed, chance
        self._secret, self._deadline_ms = secret, deadline_ms
        self._opened: PushSender | None = None
        self._running: dict[str, _Running] = {}
        self._good = asyncio.Semaphore(_SLOTS)
        self._doubtful = asyncio.Semaphore(_DOUBTFUL_SLOTS)
        self._started = False

    async def start(self) -> None:
        """Takes up the subscriptions there are; what waits is sent at once."""
        for push in await run_blocking(partial(load_pushes, self._channels.records)):
            self._running.setdefault(push.session, _Running(PushDelivery(push=push)))
        self._started = True
        for session in self._running:
            self._serve(session)

    async def stop(self) -> None:
        """Stops delivering; subscriptions stay in the records."""
        self._started = False
        tasks = [one.task for one in self._running.values() if one.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def request(
        self,
        name: str,
        request: Request,
        *,
        identity: str,
        subscriber_wsdl: str = "",
        closing: asyncio.Event | None = None,
    ) -> Batch:
        """Answers a request: pulled messages, or an empty batch when they will be pushed.

        A token with a lease of 0 ends its session, pushed or not; a token of a pushed session with
        an address renews its lease. Raises as MessageSource.request does, and for an address that
        the site does not allow, a WSDL that cannot be used, or taking without the right to take.
        """
        if request.take:
            self._rights.check(identity, "take", name)
        is_push = bool(request.push_address or subscriber_wsdl)
        if request.token and request.lease_minutes == 0:
            await self._cancel_by_token(name, request.token, identity)
            request, is_push = msgspec.structs.replace(request, push_address=""), False
        if not is_push:
            return await self._channels.source.request(
                name, request, identity=identity, closing=closing
            )
        if request.lease_minutes == 0:
            raise InvalidInput(
                "a push lasts as long as its lease, and 0 minutes were asked for",
                code="push.no_lease",
            )
        sink = await self._sink(request.push_address, subscriber_wsdl)
        return await self._begin(name, request, sink, identity)

    def pushes(self) -> list[PushDelivery]:
        """The subscriptions there are, by channel and session."""
        found = [one.delivery for one in self._running.values()]
        return sorted(found, key=lambda one: (one.push.channel, one.push.session))

    async def cancel(self, session: str, why: str = "cancelled") -> bool:
        """Ends a subscription, durably; False when there is none."""
        running = self._running.pop(session, None)
        if running is None:
            return False
        if running.task is not None and running.task is not asyncio.current_task():
            running.task.cancel()
            await asyncio.gather(running.task, return_exceptions=True)
        async with running.saving:
            await run_blocking(partial(forget_push, self._channels.records, session))
        push = running.delivery.push
        _log.info("push ended", session=session, channel=push.channel, why=why)
        return True

    # --- beginning --------------------------------------------------------------------------------

    async def _sink(self, address: str, subscriber_wsdl: str) -> SubscriberSink:
        if not subscriber_wsdl:
            check_address(address, self._allowed)
            return SubscriberSink(address, "json")
        document: bytes | str = subscriber_wsdl
        if not is_document(subscriber_wsdl):
            check_address(subscriber_wsdl, self._allowed)
            document = await self._sender().fetch(subscriber_wsdl)
        sink = find_sink(document)
        check_address(sink.address, self._allowed)
        return sink

    async def _begin(
        self, name: str, request: Request, sink: SubscriberSink, identity: str
    ) -> Batch:
        self._sender()  # refuses now rather than later when the driver is missing
        source = self._channels.source
        known = request.token and await source.session_of(name, request.token, identity=identity)
        if known not in self._running and len(self._running) >= MOST_PUSHES:
            raise ChannelUnavailable(
                f"{MOST_PUSHES} subscriptions are pushed already", code="push.too_many"
            )
        plain = msgspec.structs.replace(request, push_address="")
        opened = await source.open(name, plain, identity=identity)
        until_ms = self._time.now_ms() + opened.lease_minutes * _MINUTE_MS
        running = self._running.get(opened.session)
        if running is not None:
            change = partial(renewed, until_ms=until_ms, address=sink.address, form=sink.form)
            await self._change(running, change)
        else:
            push = PushSubscription(
                session=opened.session,
                channel=name,
                identity=identity,
                address=sink.address,
                form=sink.form,
                token=opened.token,
                sent=False,
                until_ms=until_ms,
                take=request.take,
            )
            await self._add(push)
        return Batch(
            events=(),
            current_token=request.token if running is not None else opened.token,
            lease_minutes=opened.lease_minutes,
            handback=opened.handback,
        )

    async def _add(self, push: PushSubscription) -> None:
        await run_blocking(partial(save_push, self._channels.records, push))
        self._running[push.session] = _Running(PushDelivery(push=push))
        _log.info("push begun", session=push.session, channel=push.channel)
        if self._started:
            self._serve(push.session)

    async def _cancel_by_token(self, name: str, token: str, identity: str) -> None:
        await self.cancel(await self._channels.source.session_of(name, token, identity=identity))

    # --- delivering -------------------------------------------------------------------------------

    def _serve(self, session: str) -> None:
        running = self._running[session]
        if running.task is None or running.task.done():
            running.task = asyncio.create_task(self._run(running), name=f"push {session}")

    async def _run(self, running: _Running) -> None:
        while self._running.get(running.delivery.push.session) is running:
            push = running.delivery.push
            step = next_step(running.delivery, self._time.now_ms(), longest_wait_ms=LONGEST_WAIT_MS)
            if not self._rights.allows(push.identity, "subscribe", push.channel):
                step = EndPush("its subscriber may no longer read the channel")
            elif push.take and not self._rights.allows(push.identity, "take", push.channel):
                step = EndPush("its subscriber may no longer take from the channel")
            if isinstance(step, EndPush):
                await self.cancel(push.session, step.why)
                return
            try:
                await self._carry_out(running, step)
            except Exception as error:  # a fault here must not end what others rely on
                why = error.message if isinstance(error, RapportError) else repr(error)
                _log.warning("push delayed", session=push.session, why=why)
                self._note_failure(running, PushFailure("unreachable", why))

    async def _carry_out(self, running: _Running, step: PushStep) -> None:
        if isinstance(step, PausePush):
            running.wake.clear()
            await first_of(self._clock.sleep(step.wait_ms), running.wake.wait())
        elif isinstance(step, AwaitMessages):
            batch = await self._next_batch(running, seen=True, wait_ms=step.wait_ms)
            await self._change(running, partial(after_waiting, batch=batch))
        elif isinstance(step, SendMessages):
            async with self._doubtful if running.delivery.failures else self._good:
                await self._send(running)

    async def _send(self, running: _Running) -> None:
        batch = await self._next_batch(running)
        if not batch.events and not batch.gaps:
            await self._change(running, partial(after_empty, batch=batch))
            return
        push = running.delivery.push
        failure = await self._sender().send(push.address, push.form, push.channel, batch)
        if failure is None:
            await self._settle(running, batch)
        elif failure.trouble == "gone":
            await self.cancel(push.session, failure.why)
        else:
            self._note_failure(running, failure)
            if is_refused_for_good(running.delivery):
                await self._dead_letter(running, batch, failure.why)

    async def _settle(self, running: _Running, batch: Batch) -> None:
        if running.delivery.push.take:
            await self._next_batch(running, seen=True, take=True)
        await self._change(running, partial(after_sent, batch=batch))

    async def _dead_letter(self, running: _Running, batch: Batch, why: str) -> None:
        push, refusals = running.delivery.push, running.delivery.refusals
        error = InvalidInput(why, code="push.refused")
        for stored in batch.events:
            reader = f"push.{push.session}"
            await append_dead_letter(self._channels, push.channel, reader, stored, error, refusals)
        await self._settle(running, batch)

    async def _next_batch(
        self, running: _Running, *, seen: bool = False, take: bool = False, wait_ms: int = 0
    ) -> Batch:
        push = running.delivery.push
        request = Request(
            token=push.token,
            seen=seen,
            take=take,
            wait_ms=wait_ms,
            lease_minutes=lease_minutes_left(push, self._time.now_ms()),
        )
        return await self._channels.source.request(push.channel, request, identity=push.identity)

    def _note_failure(self, running: _Running, failed: PushFailure) -> None:
        chance, now_ms = self._chance.uniform(0, 1), self._time.now_ms()
        running.delivery = after_failure(running.delivery, failed, now_ms, chance=chance)

    async def _change(
        self, running: _Running, change: Callable[[PushDelivery], PushDelivery]
    ) -> None:
        """Applies a change to what is known now and makes it durable before anything follows."""
        async with running.saving:
            changed = change(running.delivery)
            if changed.push != running.delivery.push:
                await run_blocking(partial(save_push, self._channels.records, changed.push))
            running.delivery = changed
            running.wake.set()

    def _sender(self) -> PushSender:
        """Opened by the first push: most nodes have none."""
        if self._opened is None:
            self._opened = PushSender(
                self._clock, secret=self._secret, deadline_ms=self._deadline_ms
            )
        return self._opened


_LONGEST_ANSWER = 64 * 1024
_REFUSALS = frozenset((400, 405, 409, 411, 413, 415, 422))
_VERSIONS = {"soap": SOAP_11, "soap12": SOAP_12}
T = TypeVar("T")


class PushSender:
    """Kept connections to the receivers. Calls may run side by side."""

    def __init__(self, clock: Clock, *, secret: str = "", deadline_ms: int = DEADLINE_MS) -> None:
        """With a `secret` every body is signed; see channel/push.py."""
        self._clock, self._deadline_ms, self._secret = clock, deadline_ms, secret
        self._client = httpx2.AsyncClient(
            timeout=deadline_ms / 1_000,
            follow_redirects=False,
            trust_env=False,
            limits=httpx2.Limits(max_connections=64, max_keepalive_connections=32),
        )

    async def send(
        self, address: str, form: PushForm, channel: str, batch: Batch
    ) -> PushFailure | None:
        """Posts a batch; None when the receiver has it."""
        body, headers = write_push(form, channel, batch)
        if self._secret:
            headers |= signed_headers(self._secret, body, self._clock.now_ms())
        try:
            status, answer = await self._within(
                self._exchange("POST", address, _LONGEST_ANSWER, content=body, headers=headers)
            )
        except SourceUnavailable as error:
            return PushFailure("unreachable", error.message)
        if 200 <= status < 300 or (status == 500 and form != "json"):
            return None if form == "json" else _fault_in(status, answer)
        if status == 410:
            return PushFailure("gone", "the receiver answered HTTP 410: it wants nothing more")
        kind: PushTrouble = "refused" if status in _REFUSALS else "unreachable"
        return PushFailure(kind, f"the receiver answered HTTP {status}")

    async def fetch(self, address: str) -> bytes:
        """A small document; raises SourceUnavailable or InvalidInput (too long, not there)."""
        status, answer = await self._within(self._exchange("GET", address, LONGEST_WSDL + 1))
        if status != 200:
            raise InvalidInput(
                f"the subscriber's WSDL was answered with HTTP {status}", code="push.bad_wsdl"
            )
        return answer

    async def close(self) -> None:
        await self._client.aclose()

    async def _exchange(
        self, method: str, address: str, longest: int, **what: object
    ) -> tuple[int, bytes]:
        """Status and the beginning of the answer; raises SourceUnavailable."""
        try:
            async with self._client.stream(method, address, **what) as response:
                answer = b""
                async for chunk in response.aiter_bytes():
                    answer += chunk
                    if len(answer) >= longest:
                        break
                return response.status_code, answer[:longest]
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            # The driver's own text could show the address, which may hold a secret.
            raise SourceUnavailable(
                f"the receiver cannot be reached: {type(error).__name__}", code="push.unreachable"
            ) from None

    async def _within(self, work: Awaitable[T]) -> T:
        """The result of the work, unless the deadline passes first."""
        working = asyncio.ensure_future(work)
        deadline = asyncio.ensure_future(self._clock.sleep(self._deadline_ms))
        try:
            await asyncio.wait({working, deadline}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise SourceUnavailable("the receiver did not answer in time", code="push.unreachable")
        finally:
            await cancel_until_done(working, deadline)


def write_push(form: PushForm, channel: str, batch: Batch) -> tuple[bytes, dict[str, str]]:
    """Body and HTTP headers of one pushed batch."""
    key = {"Idempotency-Key": token_digest(batch.current_token)}
    if form == "json":
        return write_json_batch(channel, batch), key | {"Content-Type": "application/json"}
    version = _VERSIONS[form]
    content = f"<x:{HANDLE}>{write_xml_batch(batch)}</x:{HANDLE}>"
    body = write_envelope(version, content, header=write_gaps(batch.gaps))
    action = f"{XMESSAGES}#{HANDLE}"
    if version == SOAP_12:
        return body, key | {"Content-Type": f'{MEDIA_TYPES[version]}; action="{action}"'}
    return body, key | {"Content-Type": MEDIA_TYPES[version], "SOAPAction": f'"{action}"'}


def _fault_in(status: int, answer: bytes) -> PushFailure | None:
    """What a SOAP receiver answered: nothing and anything but a fault are fine with 2xx."""
    try:
        root = parse_xml(answer) if answer.strip() else None
    except RapportError:
        root = None
    body = next((one for one in root.children if one.name == "Body"), None) if root else None
    fault = body.child("Fault") if body is not None else None
    if fault is None:
        return (
            None if status < 300 else PushFailure("unreachable", f"HTTP {status} without a fault")
        )
    code, reason = fault.child("faultcode"), fault.child("faultstring")
    blame = code.text if code is not None else _value_of(fault.child("Code"))
    blamed = blame.rpartition(":")[2] in ("Client", "Sender")
    text = reason.text if reason is not None else blame
    shown = "".join(c if c.isprintable() else " " for c in text[:200])
    return PushFailure("refused" if blamed else "unreachable", f"the receiver's fault: {shown}")


def _value_of(code: XmlNode | None) -> str:
    """The code of a SOAP 1.2 fault."""
    value = code.child("Value") if code is not None else None
    return value.text if value is not None else ""
