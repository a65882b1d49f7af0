"""Stateful adapters: one instance per peer and address, made on first use, closed after idling.
[CO-4]

Seen from dispatch all instances of a class are one adapter.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from rapport.communication.adapters.base import (
    Delivery,
    Failed,
    Outcome,
    OutputAdapter,
    declaration_of,
)
from rapport.communication.adapters.contained import IsolatedCall, end_isolated
from rapport.core.errors import InvalidInput
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import end_firmly, first_of
from rapport.kernel.telemetry import get_logger

IDLE_MS = 10 * 60_000
_CLOSE_WITHIN_MS = 5_000
_log = get_logger(__name__)

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
