"""Stateful adapters: one instance per peer and address, made on first use, closed after idling.
[CO-4]

Seen from dispatch all instances of a class are one adapter.

The output adapters of a node: registered and removed while traffic flows. [CO-4, CO-17]

A name that was removed is still served by `AbsentAdapter`, so what was queued for it at the last
moment fails and goes another way; nothing is dropped. Where several engines work their shares
carry the deliveries (`Carrier`), and what is added or removed here is told to the others.

Whether a delivery that had to wait may still be sent: what its receiver says now. [CO-9]

The engine asked before it was queued. Behind a slow medium, or while nothing ran, quiet hours may
have begun since; what may not go then is given back to the engine, which judges and holds it.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.adapters.base import (
    AbsentAdapter,
    Delivery,
    Failed,
    OtherEngineAdapter,
    Outcome,
    OutputAdapter,
    check_method,
    declaration_of,
)
from rapport.communication.adapters.dispatch import (
    DEFAULT_SETTINGS,
    CircuitStatus,
    Dispatch,
    DispatchSettings,
    MaySend,
    cannot_recall,
    may_always_send,
    never_decided,
)
from rapport.communication.adapters.isolation import IsolatedCall, end_isolated
from rapport.communication.adapters.outcome_events import Report
from rapport.communication.peers import PeerDirectory
from rapport.communication.privacy.functions import NO_FUNCTIONS, PrivacyFunctions
from rapport.communication.privacy.verdict import Allowed, PrivacyFacts, verdict
from rapport.core.errors import (
    DuplicateName,
    InvalidInput,
    RapportError,
    SourceUnavailable,
    Unsupported,
)
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import Tasks, end_firmly, first_of
from rapport.kernel.telemetry import get_logger
from rapport.store.base import RecordStore

IDLE_MS = 10 * 60_000
_CLOSE_WITHIN_MS = 5_000


MakeInstance = Callable[[str], OutputAdapter]
"""An address to a new instance for it; may raise anything."""


class _Instance(msgspec.Struct):
    """One adapter of one peer: when it was last used and by how many it is being used."""

    adapter: OutputAdapter
    used_ms: int
    users: int = 0
    outdated: bool = False


class PeerInstances:
    """An output adapter that hands each delivery to its peer's own instance. Never two instances
    for one peer and address at a time.
    """

    def __init__(
        self, name: str, make: MakeInstance, clock: Clock, *, idle_ms: int = IDLE_MS
    ) -> None:
        self.name, self._make, self._clock, self._idle_ms = name, make, clock, idle_ms
        self._instances: dict[tuple[str, str], _Instance] = {}
        self._outdated: list[_Instance] = []
        """Not used any more and to be closed."""
        self._news = asyncio.Event()

    async def send(self, delivery: Delivery) -> Outcome | None:
        """What the peer's instance says; one that cannot be made is a failed address."""
        key = delivery.peer, delivery.address
        instance = self._instances.get(key)
        if instance is None:
            try:
                instance = _Instance(self._make(delivery.address), self._clock.now_ms())
            except Exception as error:
                _log.error("adapter not made", adapter=self.name, error=repr(error))
                return Failed(
                    f"adapter.not_made: no {self.name} adapter could be made for this address: "
                    f"{type(error).__name__}",
                    retry=False,
                )
            self._instances[key] = instance
        return await self._send_with(instance, delivery)

    async def _send_with(self, instance: _Instance, delivery: Delivery) -> Outcome | None:
        instance.users += 1
        try:
            return await instance.adapter.send(delivery)
        finally:
            instance.users -= 1
            instance.used_ms = self._clock.now_ms()
            if instance.outdated:
                self._set_aside(instance)

    def peer_changed(self, peer: str) -> None:
        """The peer's addresses or policy are others now: the next delivery makes a new instance,
        the old ones are closed by `run`, those in use after that.
        """
        for key in [key for key in self._instances if key[0] == peer]:
            self._let_go(key)

    async def close_idle(self) -> int:
        """Closes what has not been used for long, and what is outdated; returns how many."""
        now_ms = self._clock.now_ms()
        idle = [
            key
            for key, instance in self._instances.items()
            if not instance.users and now_ms - instance.used_ms >= self._idle_ms
        ]
        for key in idle:
            self._let_go(key)
        return await self._close_outdated()

    async def run(self) -> None:
        """Closes what is outdated at once, what is idle soon, until cancelled."""
        while True:
            await self.close_idle()
            self._news.clear()
            await first_of(self._news.wait(), self._clock.sleep(max(self._idle_ms // 4, 1)))

    def count(self) -> int:
        """Instances that are alive."""
        return len(self._instances)

    async def close(self) -> None:
        """Closes all; a second call is no error."""
        for key in list(self._instances):
            self._let_go(key)
        await self._close_outdated()

    def _let_go(self, key: tuple[str, str]) -> None:
        instance = self._instances.pop(key)
        instance.outdated = True
        self._set_aside(instance)

    def _set_aside(self, instance: _Instance) -> None:
        if not instance.users:
            self._outdated.append(instance)
            self._news.set()

    async def _close_outdated(self) -> int:
        outdated, self._outdated = self._outdated, []
        await asyncio.gather(*(self._close(instance) for instance in outdated))
        return len(outdated)

    async def _close(self, instance: _Instance) -> None:
        """One that fails or hangs keeps no others open."""
        held = IsolatedCall(instance.adapter.close)
        closing: asyncio.Future[None] = asyncio.ensure_future(held)
        deadline = asyncio.ensure_future(self._clock.sleep(_CLOSE_WITHIN_MS))
        try:
            await asyncio.wait({closing, deadline}, return_when=asyncio.FIRST_COMPLETED)
            in_time = closing.done()
        finally:
            await end_firmly(deadline)
            await end_isolated(closing, held)
        why = closing.exception() if in_time and not closing.cancelled() else "it takes too long"
        if why is not None:
            _log.error("adapter not closed", adapter=self.name, error=str(why)[:200])


def instance_factory(kind: type[Any]) -> MakeInstance:
    """How instances of a class are made: with the peer's address, or with nothing if that is what
    it takes. Raises InvalidInput when the class wants more.
    """
    name = declaration_of(kind).name
    parameters = inspect.signature(kind).parameters.values()
    needed = [entry for entry in parameters if _is_needed(entry)]
    if len(needed) > 1 or any(entry.kind is entry.KEYWORD_ONLY for entry in needed):
        raise InvalidInput(
            f"the adapter {name!r} cannot be made: {kind.__name__} wants "
            f"{', '.join(entry.name for entry in needed)}",
            code="adapter.bad_constructor",
            hint="a stateful adapter takes the peer's address or nothing",
        )
    if any(entry.kind in _POSITIONAL for entry in parameters):
        return lambda address: kind(address)
    return lambda _address: kind()


_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


def _is_needed(parameter: inspect.Parameter) -> bool:
    varied = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in varied


_OUTPUT = "output."
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")
_LONGEST_CLOSE_MS = 10_000
RETRIES_WITHIN_MS = 15_000
"""How long removing an adapter waits for deliveries in a retry pause."""
_RETRY_STEP_MS = 50
_log = get_logger(__name__)
NO_SETTINGS: Mapping[str, DispatchSettings] = {}


class OutputStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say about one adapter now."""

    name: str
    stateful: bool
    waiting: int
    """Deliveries in its channel that have no outcome yet."""
    workers: int
    """Calls of the adapter under way."""
    instances: int
    """Peers' own instances, for a stateful adapter."""
    blocked: int = 0
    """How often it kept the event loop from turning."""
    trouble: str = ""
    """Why its latest calls failed; empty while they succeed."""
    circuits: list[CircuitStatus] = []
    """Peers that are left alone for a while, since calls to them failed."""


class Carrier(Protocol):
    """What carries deliveries in place of `Outputs` where several engines work, and tells the
    others of a change: `sharing/registrations.py`.
    """

    async def announce(self, name: str) -> None:
        """All engines that can make an adapter of that name have it soon; durable when it
        returns.
        """

    async def withdraw(self, name: str) -> bool:
        """The others let go of it soon; False when nobody had announced it."""

    async def carry(self, adapter: OutputAdapter) -> None:
        """From now on it takes what is queued for its name; what the one before it had to do is
        done when it returns.
        """


class Retries(Protocol):
    """The deliveries that failed and are tried again later: `CommunicationEngine`."""

    async def next_retry_ms(self, adapter: str) -> int:
        """When the next one by this adapter is due, ms UTC; 0 = there is none."""

    async def take_due(self) -> None:
        """Queues what is due now."""

    async def retry_now(self, adapter: str) -> None:
        """Queues the rest by this adapter at once."""


class _RunningOutput(msgspec.Struct, frozen=True):
    """An adapter and what carries deliveries to it."""

    adapter: OutputAdapter
    dispatch: Dispatch


class Outputs:
    """Holds a dispatch per adapter. Dispatches held before the start are run by whoever starts the
    node (`work`), those registered later under the care of this class.
    """

    def __init__(
        self,
        channels: Channels,
        records: RecordStore,
        clock: Clock,
        *,
        report: Report | None = None,
        is_decided: Callable[[str, str], bool] = never_decided,
        recall: Callable[[str, str], bool | None] = cannot_recall,
        may_go: MaySend = may_always_send,
        settings: Mapping[str, DispatchSettings] = NO_SETTINGS,
        idle_ms: int = IDLE_MS,
        shared: bool = False,
    ) -> None:
        """`settings` by adapter name; `idle_ms`: when unused instances of stateful adapters are
        closed; `shared`: the shares of several engines carry deliveries to the adapters that are
        held here, which are always the same.
        """
        self._channels, self._clock, self._idle_ms = channels, clock, idle_ms
        self._settings, self._shared = settings, shared
        self._make = partial(
            Dispatch,
            channels=channels,
            records=records,
            clock=clock,
            report=report,
            is_decided=is_decided,
            recall=recall,
            may_go=may_go,
        )
        self._served: dict[str, _RunningOutput] = {}
        self._absent: dict[str, Dispatch] = {}
        self._tasks = Tasks(clock)
        self.carrier: Carrier | None = None
        """Needed for changes at run time where several engines work."""
        self.handle_accepted: Callable[[], Awaitable[None]] = _nothing_accepted
        """Returns when every message that is accepted now is queued for its adapters."""
        self.retries: Retries | None = None
        """Deliveries in a retry pause; None where there is no engine."""
        self._departing: dict[str, _RunningOutput] = {}
        """Adapters that are being removed: nothing more is queued for them."""
        self._removals: set[str] = set()
        """Names of adapters that are being removed, those included that still take messages."""

    @property
    def names(self) -> Collection[str]:
        """The adapters that messages may be queued for: a view that follows every change."""
        return self._served.keys()

    def adapter(self, name: str) -> OutputAdapter | None:
        """The adapter of that name, or None."""
        served = self._served.get(name)
        return served.adapter if served else None

    def status(self) -> list[OutputStatus]:
        """All adapters, by name."""
        now_ms = self._clock.now_ms()
        return [_status(self._served[name], now_ms) for name in sorted(self._served)]

    def circuits(self) -> dict[str, list[CircuitStatus]]:
        """By peer the addresses that are left alone now."""
        found: dict[str, list[CircuitStatus]] = {}
        for status in self.status():
            for circuit in status.circuits:
                found.setdefault(circuit.peer, []).append(circuit)
        return found

    # --- before the start ---

    def hold(self, adapter: OutputAdapter) -> Dispatch:
        """Adds an adapter that is made already; run by `work`. Raises DuplicateName, and
        InvalidInput for one that cannot be called.
        """
        self._check(adapter.name)
        check_output(adapter, adapter.name)
        dispatch = self._new_dispatch(adapter)
        self._served[adapter.name] = _RunningOutput(adapter, dispatch)
        return dispatch

    def hold_absent(self, may_return: Collection[str] = ()) -> None:
        """Answers for adapters that something was queued for and that are no more; `may_return`
        names those that an application registers after the start.
        """
        for channel in self._channels.names():
            name = channel.removeprefix(_OUTPUT)
            if channel.startswith(_OUTPUT) and name not in (*self._served, *self._absent):
                absent = AbsentAdapter(name, may_return=name in may_return)
                self._absent[name] = self._new_dispatch(absent)

    def dispatches(self) -> list[Dispatch]:
        """All of them now, the absent ones last."""
        return [*(served.dispatch for served in self._served.values()), *self._absent.values()]

    def work(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What is to be run of the adapters held so far, by name; each may be started again after a
        failure.
        """
        carrying = () if self._shared else self.dispatches()
        work: dict[str, Callable[[], Awaitable[None]]] = {
            dispatch.reader: dispatch.run for dispatch in carrying
        }
        for name, served in self._served.items():
            if isinstance(served.adapter, PeerInstances):
                work[f"adapter.{name}.instances"] = served.adapter.run
        return work

    # --- at run time ---

    async def register(self, kind: type[Any]) -> str:
        """Adds the adapter of a class declared with `@adapter`; in force and running when it
        returns. A stateless one is made now, with nothing.

        Raises InvalidInput (`adapter.not_declared`, `adapter.not_made`, `adapter.bad_constructor`,
        `adapter.bad_name`, `adapter.bad_signature`) or DuplicateName.
        """
        self._check(declaration_of(kind).name)
        return await self.use(make_output(kind, self._clock, idle_ms=self._idle_ms))

    async def use(self, adapter: OutputAdapter) -> str:
        """Adds an adapter that is made already, as `register` does. Where several engines work the
        others have it a moment later, those that can make one of that name; see `ElsewhereAdapter`.
        """
        check_output(adapter, adapter.name)
        if self._shared:
            return await self._use_shared(adapter)
        name = adapter.name
        await self._tasks.ended(_leaving(name))
        self._check(name)
        served = _RunningOutput(adapter, self._new_dispatch(adapter))
        self._served[name] = served
        absent = self._absent.pop(name, None)
        if absent is not None:
            # They share a place in the channel: never both at a time.
            await absent.drain()
        self._tasks.start(served.dispatch.reader, served.dispatch.run)
        if isinstance(adapter, PeerInstances):
            self._tasks.start(f"adapter.{name}.instances", adapter.run)
        return name

    async def remove(self, name: str) -> bool:
        """Takes an adapter away: messages that were accepted before are queued and go out first,
        then nothing more is queued for it and it is closed. Returns when that is done; False when
        there is none of that name. Deliveries that failed get the attempts that are due within
        `RETRIES_WITHIN_MS`; the others then go to the peer's next address, or fail and their
        sender is notified.

        Takes as long as the medium does, the deadline per send at the most. Giving up waiting does
        not keep it from being removed. Where several engines work this speaks of the part that this
        one carries; the others follow a moment later, each for its own.
        """
        if self._shared:
            return await self._remove_shared(name)
        if name not in self._served:
            return False
        if name not in self._removals:
            self._removals.add(name)
            self._tasks.start(_leaving(name), partial(self._see_off, name))
        await self._tasks.ended(_leaving(name))
        return True

    # --- where several engines work ---

    async def _use_shared(self, adapter: OutputAdapter) -> str:
        carrier, name = self._checked_carrier(), adapter.name
        await self._tasks.ended(_leaving(name))
        self._check(name)
        before = self._served.get(name)
        self._served[name] = _RunningOutput(adapter, self._new_dispatch(adapter))
        try:
            await carrier.announce(name)
        except BaseException:
            del self._served[name]
            if before is not None:
                self._served[name] = before
            raise
        await self.carry(adapter)
        return name

    async def carry(self, adapter: OutputAdapter) -> None:
        """Adds an adapter that was announced; for the carrier."""
        name = adapter.name
        self._served[name] = _RunningOutput(adapter, self._new_dispatch(adapter))
        self._absent.pop(name, None)
        if isinstance(adapter, PeerInstances):
            self._tasks.start(f"adapter.{name}.instances", adapter.run)
        await self._checked_carrier().carry(adapter)

    async def _remove_shared(self, name: str) -> bool:
        if name not in self._served:
            return False
        if not await self._checked_carrier().withdraw(name):
            raise Unsupported(
                "removing a medium of the site at run time",
                "several engines",
                hint="take it out of the site file, or of what each process is opened with",
            )
        await self.let_go(name)
        return True

    async def let_go(self, name: str) -> None:
        """Removes an adapter that was withdrawn; for the carrier. As `remove` otherwise."""
        served = self._served.pop(name, None)
        if served is not None:
            self._tasks.start(_leaving(name), partial(self._let_go, name, served))
        await self._tasks.ended(_leaving(name))

    async def _let_go(self, name: str, served: _RunningOutput) -> None:
        """May be called again after a failure."""
        absent = self._absent[name] = self._new_dispatch(AbsentAdapter(name))
        await self._checked_carrier().carry(absent.adapter)
        await self._tasks.stop(f"adapter.{name}.instances")
        await self._close(served.adapter)

    def peer_changed(self, peer: str) -> None:
        """A peer's addresses or policy are others now: its own instances are made anew when next
        needed.
        """
        for served in list(self._served.values()):
            if isinstance(served.adapter, PeerInstances):
                served.adapter.peer_changed(peer)

    async def close(self) -> None:
        """Stops what runs here and closes all adapters; what `work` gave was stopped before."""
        await self._tasks.stop()
        for served in self._served.values():
            await self._close(served.adapter)

    # --- parts ---

    async def _see_off(self, name: str) -> None:
        """May be called again after a failure."""
        if name in self._served:
            await self.handle_accepted()
            self._departing[name] = self._served.pop(name)
        served = self._departing[name]
        await served.dispatch.drain()
        await self._wait_for_retries(name, served.dispatch)
        await self._tasks.stop(f"adapter.{name}", f"adapter.{name}.instances")
        await self._close(served.adapter)
        self._departing.pop(name)
        self._removals.discard(name)
        absent = self._absent[name] = self._new_dispatch(AbsentAdapter(name))
        self._tasks.start(absent.reader, absent.run)
        await self._give_up_retries(name)

    async def _give_up_retries(self, name: str) -> None:
        """What still waits goes another way now; where that fails, at its own time."""
        try:
            if self.retries is not None:
                await self.retries.retry_now(name)
        except RapportError as error:
            _log.error("retries not brought forward", adapter=name, error=repr(error))

    async def _wait_for_retries(self, name: str, dispatch: Dispatch) -> None:
        """Lets the adapter make the attempts that are due soon."""
        if self.retries is None:
            return
        until_ms = self._clock.now_ms() + RETRIES_WITHIN_MS
        while 0 < (due_ms := await self.retries.next_retry_ms(name)) <= until_ms:
            now_ms = self._clock.now_ms()
            if now_ms >= until_ms:
                return
            await self._clock.sleep(max(due_ms - now_ms, _RETRY_STEP_MS))
            await self.retries.take_due()
            await dispatch.drain()

    async def _close(self, adapter: OutputAdapter) -> None:
        """One that will not close keeps nobody else from leaving."""
        closing = asyncio.ensure_future(self._closed(adapter))
        deadline = asyncio.ensure_future(self._clock.sleep(_LONGEST_CLOSE_MS))
        try:
            await asyncio.wait({closing, deadline}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            deadline.cancel()

    async def _closed(self, adapter: OutputAdapter) -> None:
        try:
            await adapter.close()
        except Exception as error:
            _log.error("adapter not closed", adapter=adapter.name, error=repr(error))

    def _new_dispatch(self, adapter: OutputAdapter) -> Dispatch:
        return self._make(adapter, settings=self._settings.get(adapter.name, DEFAULT_SETTINGS))

    def _checked_carrier(self) -> Carrier:
        if self.carrier is None:
            raise Unsupported(
                "changing media at run time",
                "several engines without anybody to tell them",
                hint="say the media in the site file, or where each process is opened",
            )
        return self.carrier

    def _check(self, name: str) -> None:
        if not _NAME.match(name):
            raise InvalidInput(
                f"{name[:80]!r} cannot be the name of an adapter",
                code="adapter.bad_name",
                hint="a letter, then letters, digits, - or _, all lower case: such as sms-gateway",
            )
        served = self._served.get(name)
        if served is not None and not isinstance(served.adapter, OtherEngineAdapter):
            raise DuplicateName(
                f"there is an adapter named {name!r} already",
                code="adapter.registered",
                hint=f"remove {name!r} first, or give this one another name",
            )


async def _nothing_accepted() -> None:
    """Nobody accepts messages here."""


def make_output(kind: type[Any], clock: Clock, *, idle_ms: int = IDLE_MS) -> OutputAdapter:
    """The adapter of a declared class: the one instance, or what makes one for each peer. Raises
    as `Outputs.register` does.
    """
    said = declaration_of(kind)
    if said.stateful:
        make = instance_factory(kind)
        check_output(kind, said.name)
        return PeerInstances(said.name, make, clock, idle_ms=idle_ms)
    return _made(kind, said.name)


def check_output(subject: object, name: str) -> None:
    """Raises InvalidInput for an adapter, or a class of them, whose methods cannot be called."""
    owner, code = f"the adapter {name!r}", "adapter.bad_signature"
    check_method(subject, owner, "send", "async def send(self, delivery)", 1, code=code)
    if hasattr(subject, "close"):
        check_method(subject, owner, "close", "async def close(self)", 0, code=code)
    if hasattr(subject, "send_many"):
        example = "async def send_many(self, deliveries)"
        check_method(subject, owner, "send_many", example, 1, code=code)


def _made(kind: type[Any], name: str) -> OutputAdapter:
    try:
        made: OutputAdapter = kind()
    except Exception as error:
        raise InvalidInput(
            f"the adapter {name!r} could not be made: {type(error).__name__}: {error}",
            code="adapter.not_made",
            hint="a stateless adapter is made with nothing; Outputs.use takes one made already",
        ) from error
    return made


def _status(served: _RunningOutput, now_ms: int) -> OutputStatus:
    adapter = served.adapter
    of_peers = adapter if isinstance(adapter, PeerInstances) else None
    return OutputStatus(
        name=adapter.name,
        stateful=of_peers is not None,
        waiting=served.dispatch.waiting(),
        workers=served.dispatch.workers,
        instances=of_peers.count() if of_peers else 0,
        blocked=served.dispatch.steps.blocked,
        trouble=served.dispatch.trouble,
        circuits=served.dispatch.breakers.status(now_ms),
    )


def _leaving(name: str) -> str:
    return f"adapter.{name}.leaving"


class PrivacyRecheck:
    """Called with a delivery and the time; from any thread. Costs one look into the directory for
    who has no privacy policy.
    """

    def __init__(
        self, directory: PeerDirectory, functions: PrivacyFunctions = NO_FUNCTIONS
    ) -> None:
        self._directory, self._functions = directory, functions

    def __call__(self, delivery: Delivery, now_ms: int) -> bool:
        """False also while nobody can say who the receiver is. Limits on how many there may be are
        not asked again: it is counted already.
        """
        try:
            peer = self._directory.peer(delivery.peer)
        except SourceUnavailable:
            return False
        if peer is None or not peer.privacy:
            return True
        facts = PrivacyFacts(
            type=delivery.type,
            subtype=delivery.subtype,
            sender=delivery.rule_sender or delivery.sender,
            urgent=delivery.urgent,
            now_ms=now_ms,
            peer=peer.name,
            sent_ms=delivery.sent or delivery.time,
            recent=lambda _count: (),
        )
        return isinstance(verdict(peer.privacy, facts, self._functions), Allowed)
