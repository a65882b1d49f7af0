"""The output adapters of a node, registered and removed while traffic flows. [CO-4, CO-9, CO-17]

A removed name is still served by `AbsentAdapter`: deliveries queued for it at the last moment fail
and go another way, so nothing is dropped. A stateful adapter has one instance per peer and address,
created on first use and closed when idle; to a dispatch all instances of a class are one adapter.
`SharedOutputs` of `cluster.py` serves a process of several engines.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from rapport.channel.channel import Channels
from rapport.communication.adapters.attempts import Report
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
from rapport.communication.adapters.isolation import run_within
from rapport.communication.peers import PeerDirectory
from rapport.communication.privacy import (
    NO_FUNCTIONS,
    AllowedDelivery,
    PrivacyFacts,
    PrivacyFunctions,
    verdict,
)
from rapport.core.errors import (
    DuplicateName,
    InvalidInput,
    RapportError,
    SourceUnavailable,
)
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import Tasks, first_of
from rapport.kernel.telemetry import get_logger
from rapport.store.base import RecordStore

if TYPE_CHECKING:
    from rapport.communication.engine import CommunicationEngine

IDLE_MS = 10 * 60_000
_CLOSE_WITHIN_MS = 5_000


MakeInstance = Callable[[str], OutputAdapter]
"""An address to a new instance for it; may raise any exception."""


class _Instance(msgspec.Struct):
    """The adapter of one peer and address."""

    adapter: OutputAdapter
    used_ms: int
    users: int = 0
    outdated: bool = False


class PeerInstances:
    """An output adapter that passes each delivery to its peer's own instance; there are never two
    instances for one peer and address.
    """

    def __init__(
        self, name: str, make: MakeInstance, clock: Clock, *, idle_ms: int = IDLE_MS
    ) -> None:
        self.name, self._make, self._clock, self._idle_ms = name, make, clock, idle_ms
        self._instances: dict[tuple[str, str], _Instance] = {}
        self._outdated: list[_Instance] = []
        """To be closed."""
        self._news = asyncio.Event()

    async def send(self, delivery: Delivery) -> Outcome | None:
        """The outcome of the peer's instance; one that cannot be created is a failed address."""
        key = delivery.peer, delivery.address
        instance = self._instances.get(key)
        if instance is None:
            try:
                instance = _Instance(self._make(delivery.address), self._clock.now_ms())
            except Exception as error:
                _log.error("adapter not created", adapter=self.name, error=repr(error))
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
                self._retire(instance)

    def peer_changed(self, peer: str) -> None:
        """The peer's record changed: the next delivery creates a new instance, and `run` closes the
        old ones once they are unused.
        """
        for key in [key for key in self._instances if key[0] == peer]:
            self._let_go(key)

    async def close_idle(self) -> int:
        """Closes idle and outdated instances; returns their number."""
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
        """Closes outdated instances at once, idle ones soon, until cancelled."""
        while True:
            await self.close_idle()
            self._news.clear()
            await first_of(self._news.wait(), self._clock.sleep(max(self._idle_ms // 4, 1)))

    def count(self) -> int:
        return len(self._instances)

    async def close(self) -> None:
        """Closes all; a second call is no error."""
        for key in list(self._instances):
            self._let_go(key)
        await self._close_outdated()

    def _let_go(self, key: tuple[str, str]) -> None:
        instance = self._instances.pop(key)
        instance.outdated = True
        self._retire(instance)

    def _retire(self, instance: _Instance) -> None:
        if not instance.users:
            self._outdated.append(instance)
            self._news.set()

    async def _close_outdated(self) -> int:
        outdated, self._outdated = self._outdated, []
        await asyncio.gather(
            *(
                close_adapter(self.name, each.adapter, self._clock, _CLOSE_WITHIN_MS)
                for each in outdated
            )
        )
        return len(outdated)


async def close_adapter(name: str, adapter: OutputAdapter, clock: Clock, within_ms: int) -> None:
    """Closes an adapter; one that fails or hangs keeps no others open."""
    try:
        await run_within(clock, within_ms, adapter.close)
    except Exception as error:
        _log.error("adapter not closed", adapter=name, error=repr(error)[:200])


def instance_factory(kind: type[Any]) -> MakeInstance:
    """Creates instances of a class with the peer's address, or without arguments if the class takes
    none. Raises InvalidInput for a constructor that needs more.
    """
    name = declaration_of(kind).name
    parameters = inspect.signature(kind).parameters.values()
    needed = [entry for entry in parameters if _is_needed(entry)]
    if len(needed) > 1 or any(entry.kind is entry.KEYWORD_ONLY for entry in needed):
        raise InvalidInput(
            f"the adapter {name!r} cannot be created: {kind.__name__} needs "
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
LONGEST_CLOSE_MS = 10_000
RETRIES_WITHIN_MS = 15_000
"""How long removing an adapter waits for deliveries in a retry pause."""
_RETRY_STEP_MS = 50
_log = get_logger(__name__)
NO_SETTINGS: Mapping[str, DispatchSettings] = {}


class OutputStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The present state of one adapter."""

    name: str
    stateful: bool
    waiting: int
    """Deliveries in its channel that have no outcome yet."""
    workers: int
    """Running calls of the adapter."""
    instances: int
    """Peers' own instances, for a stateful adapter."""
    blocked: int = 0
    """Steps that blocked the event loop."""
    trouble: str = ""
    """Why its latest calls failed; empty while they succeed."""
    circuits: list[CircuitStatus] = []
    """Peers with an open circuit breaker."""


class RunningOutput(msgspec.Struct, frozen=True):
    adapter: OutputAdapter
    dispatch: Dispatch


class Outputs:
    """One dispatch per adapter. Dispatches held before the start are run by the node (`work`),
    those registered later by this class.
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
    ) -> None:
        """`settings` by adapter name; `idle_ms`: when unused instances of stateful adapters are
        closed.
        """
        self._channels, self._clock, self._idle_ms = channels, clock, idle_ms
        self._settings = settings
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
        self._served: dict[str, RunningOutput] = {}
        self._absent: dict[str, Dispatch] = {}
        self._tasks = Tasks(clock)
        self.engine: CommunicationEngine | None = None
        """None where there is no engine."""
        self._departing: dict[str, RunningOutput] = {}
        """Adapters being removed for which nothing more is queued."""
        self._removals: set[str] = set()
        """Names of all adapters being removed."""

    @property
    def names(self) -> Collection[str]:
        """The adapters that messages may be queued for: a view that follows every change."""
        return self._served.keys()

    def status(self) -> list[OutputStatus]:
        """All adapters, by name."""
        now_ms = self._clock.now_ms()
        return [_status(self._served[name], now_ms) for name in sorted(self._served)]

    def circuits(self) -> dict[str, list[CircuitStatus]]:
        found: dict[str, list[CircuitStatus]] = {}
        for status in self.status():
            for circuit in status.circuits:
                found.setdefault(circuit.peer, []).append(circuit)
        return found

    # --- before the start ---

    def hold(self, adapter: OutputAdapter) -> Dispatch:
        """Adds an adapter instance; run by `work`. Raises DuplicateName, and InvalidInput for
        methods that cannot be called.
        """
        self._check(adapter.name)
        check_output(adapter, adapter.name)
        served = self._served[adapter.name] = self._running(adapter)
        return served.dispatch

    def hold_absent(self, may_return: Collection[str] = ()) -> None:
        """Answers for adapters that no longer exist but have a channel; `may_return` names those
        that an application registers after the start.
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
        """The tasks of the adapters held so far, by name; each may be restarted after a failure."""
        sending = {dispatch.reader: dispatch.run for dispatch in self.dispatches()}
        return sending | self._instance_work()

    def _instance_work(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The tasks that close unused instances of stateful adapters."""
        return {
            f"adapter.{name}.instances": served.adapter.run
            for name, served in self._served.items()
            if isinstance(served.adapter, PeerInstances)
        }

    # --- at run time ---

    async def register(self, kind: type[Any]) -> str:
        """Adds the adapter of a class declared with `@adapter`; it is running on return. A
        stateless one is created now, without arguments.

        Raises InvalidInput (`adapter.not_declared`, `adapter.not_made`, `adapter.bad_constructor`,
        `adapter.bad_name`, `adapter.bad_signature`) or DuplicateName.
        """
        self._check(declaration_of(kind).name)
        return await self.use(make_output(kind, self._clock, idle_ms=self._idle_ms))

    async def use(self, adapter: OutputAdapter) -> str:
        """Adds an adapter instance as `register` does."""
        check_output(adapter, adapter.name)
        name = adapter.name
        await self._tasks.ended(removal_task(name))
        self._check(name)
        served = self._served[name] = self._running(adapter)
        absent = self._absent.pop(name, None)
        if absent is not None:
            # They share a position in the channel: never both at a time.
            await absent.drain()
        self._tasks.start(served.dispatch.reader, served.dispatch.run)
        if isinstance(adapter, PeerInstances):
            self._tasks.start(f"adapter.{name}.instances", adapter.run)
        return name

    async def remove(self, name: str) -> bool:
        """Removes an adapter: messages accepted before are queued and sent first, then nothing more
        is queued for it and it is closed. False when there is none of that name. Deliveries that
        failed get the attempts that are due within `RETRIES_WITHIN_MS`; the others then go to the
        peer's next address, or fail and their sender is notified.

        Takes as long as the medium does, the deadline per send at most. A cancelled caller does not
        stop the removal.
        """
        if name not in self._served:
            return False
        if name not in self._removals:
            self._removals.add(name)
            self._tasks.start(removal_task(name), partial(self._drain_and_close, name))
        await self._tasks.ended(removal_task(name))
        return True

    def peer_changed(self, peer: str) -> None:
        """The peer's record changed: its instances are created anew when next needed."""
        for served in list(self._served.values()):
            if isinstance(served.adapter, PeerInstances):
                served.adapter.peer_changed(peer)

    async def close(self) -> None:
        """Stops the dispatches that run here and closes all adapters; those of `work` have ended
        before.
        """
        await self._tasks.stop()
        for served in self._served.values():
            await close_adapter(served.adapter.name, served.adapter, self._clock, LONGEST_CLOSE_MS)

    # --- parts ---

    async def _drain_and_close(self, name: str) -> None:
        """May be called again after a failure."""
        if name in self._served:
            if self.engine is not None:
                await self.engine.handle_accepted()
            self._departing[name] = self._served.pop(name)
        served = self._departing[name]
        await served.dispatch.drain()
        await self._wait_for_retries(name, served.dispatch)
        await self._tasks.stop(f"adapter.{name}", f"adapter.{name}.instances")
        await close_adapter(name, served.adapter, self._clock, LONGEST_CLOSE_MS)
        self._departing.pop(name)
        self._removals.discard(name)
        absent = self._absent[name] = self._new_dispatch(AbsentAdapter(name))
        self._tasks.start(absent.reader, absent.run)
        await self._give_up_retries(name)

    async def _give_up_retries(self, name: str) -> None:
        """Sends what still waits another way now; where that fails, it goes at its own time."""
        try:
            if self.engine is not None:
                await self.engine.retry_now(name)
        except RapportError as error:
            _log.error("retries not brought forward", adapter=name, error=repr(error))

    async def _wait_for_retries(self, name: str, dispatch: Dispatch) -> None:
        """Lets the adapter make the attempts that are due soon."""
        if self.engine is None:
            return
        until_ms = self._clock.now_ms() + RETRIES_WITHIN_MS
        while 0 < (due_ms := await self.engine.next_retry_ms(name)) <= until_ms:
            now_ms = self._clock.now_ms()
            if now_ms >= until_ms:
                return
            await self._clock.sleep(max(due_ms - now_ms, _RETRY_STEP_MS))
            await self.engine.run_due()
            await dispatch.drain()

    def _running(self, adapter: OutputAdapter) -> RunningOutput:
        return RunningOutput(adapter, self._new_dispatch(adapter))

    def _new_dispatch(self, adapter: OutputAdapter) -> Dispatch:
        return self._make(adapter, settings=self._settings.get(adapter.name, DEFAULT_SETTINGS))

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


def make_output(kind: type[Any], clock: Clock, *, idle_ms: int = IDLE_MS) -> OutputAdapter:
    """The adapter of a declared class: one instance, or one per peer. Raises as
    `Outputs.register` does.
    """
    declaration = declaration_of(kind)
    if declaration.stateful:
        make = instance_factory(kind)
        check_output(kind, declaration.name)
        return PeerInstances(declaration.name, make, clock, idle_ms=idle_ms)
    return _made(kind, declaration.name)


def check_output(subject: object, name: str) -> None:
    """Raises InvalidInput for an adapter, or a class, whose methods cannot be called."""
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


def _status(served: RunningOutput, now_ms: int) -> OutputStatus:
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


def removal_task(name: str) -> str:
    return f"adapter.{name}.leaving"


class PrivacyRecheck:
    """Checks whether a delivery that had to wait may still be sent: quiet hours may have begun
    since it was queued. A refused one goes back to the engine, which holds it. Thread-safe.
    """

    def __init__(
        self, directory: PeerDirectory, functions: PrivacyFunctions = NO_FUNCTIONS
    ) -> None:
        self._directory, self._functions = directory, functions

    def __call__(self, delivery: Delivery, now_ms: int) -> bool:
        """False also while the directory is unavailable. Limits on the number of messages are not
        checked again: this one is counted already.
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
        return isinstance(verdict(peer.privacy, facts, self._functions), AllowedDelivery)
