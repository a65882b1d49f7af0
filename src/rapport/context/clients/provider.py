"""A provider: sends records to a broker, once or at a rate. [CX-3]"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Self

import msgspec

from rapport.context.clients.broker_link import BrokerLink, ContextClient
from rapport.context.connections import ContextNotFound
from rapport.context.protocol import Message, Put, check_record
from rapport.context.rights import sign_record, signed_name
from rapport.core.context_record import ContextRecord, EntityRef
from rapport.core.errors import InvalidInput, RapportError, Unavailable
from rapport.kernel.signing_keys import SigningKey
from rapport.kernel.tasks import Tasks
from rapport.kernel.telemetry import get_logger
from rapport.transport.base import Address
from rapport.transport.keys import DatagramKeys

Values = Mapping[str, Any]
Measure = Callable[[], Values | Awaitable[Values]]

_WITHIN_MS = 5_000
_AT_ONCE = 64
_SET_BACK_MS = 2_000
"""A clock that is set back by no more leaves the order of updates as it is."""
_LEAST_FORGOTTEN = 1_000
_FAREWELLS_MS, _FAREWELL_WITHIN_MS = (50, 2_000), 1_000
"""The last record for the old broker is valid for a moment, so that it knows nothing afterwards;
for a longer one if that had expired when it arrived: datagrams are lost, and clocks differ.
"""
_log = get_logger(__name__)


class ContextProvider(ContextClient):
    """Provides records of entities. When `update` has returned, the broker has the record on disk.

    Valid records are sent again to a new broker when it changes brokers.
    """

    def __init__(self, link: BrokerLink, name: str = "") -> None:
        super().__init__(link)
        self.name = name
        self._signing: SigningKey | None = None
        self._provided: dict[tuple[EntityRef, str], ContextRecord] = {}
        self._forget_at = _LEAST_FORGOTTEN
        self._tasks = Tasks(link.clock)
        link.on_change.append(self._carry_along)

    @classmethod
    async def open(
        cls,
        brokers: Sequence[Address],
        *,
        name: str = "",
        keys: DatagramKeys | None = None,
        signing: SigningKey | None = None,
        **options: Any,
    ) -> Self:
        """A provider that uses one of these brokers; takes the options of ContextClient. `name` is
        the provider of its records; left out, the owner of its keys. With `signing` the name gets
        the key's fingerprint and records are signed, so that nobody else can provide under it, at
        any broker.
        """
        name = name or (keys.own if keys is not None else "")
        if not name:
            raise InvalidInput(
                "a provider without keys needs a name",
                code="context.no_provider",
                hint='say who provides: name="station-7", or --provider station-7',
            )
        provider = await super().open(brokers, keys=keys, **options)
        provider.name = name if signing is None else signed_name(name, signing)
        provider._signing = signing
        return provider

    async def update(
        self,
        entity: EntityRef | str,
        scope: str,
        values: Values,
        *,
        valid_for_ms: int,
        valid_from: int | None = None,
        within_ms: int = _WITHIN_MS,
    ) -> ContextRecord:
        """Provides the values of a scope, valid from now (or `valid_from`) for so long; returns
        when the broker has kept them.

        Raises InvalidInput (what cannot be a record), NotAllowed, Unavailable (no broker answers).
        """
        subject = EntityRef.parse(entity) if isinstance(entity, str) else entity
        record = self._record(subject, scope, values, valid_for_ms, valid_from)
        advertises = (subject, scope) not in self._provided
        if len(self._provided) >= self._forget_at:
            self._forget_past()
        self._provided[subject, scope] = record
        await self._put(record, advertises, within_ms)
        return record

    async def provide_every(
        self,
        entity: EntityRef | str,
        scope: str,
        measure: Measure,
        *,
        every_ms: int,
        valid_for_ms: int | None = None,
        within_ms: int = _WITHIN_MS,
    ) -> None:
        """Measures and provides, every so often, until cancelled. A record that no broker took, or
        that had expired, is not repeated: the next measurement is newer. Valid for two periods
        unless `valid_for_ms` is set. Raises InvalidInput (what cannot be a record), NotAllowed.
        """
        while True:
            began_ns = self._link.clock.steady_ns()
            values = measure()
            if inspect.isawaitable(values):
                values = await values
            try:
                await self.update(
                    entity,
                    scope,
                    values,
                    valid_for_ms=valid_for_ms or 2 * every_ms,
                    within_ms=min(within_ms, max(every_ms, 100)),
                )
            except RapportError as error:
                if not _may_pass(error):
                    raise
                _log.warning("context was not provided", entity=str(entity), error=error.message)
            took_ms = (self._link.clock.steady_ns() - began_ns) / 1e6
            await self._link.clock.sleep(max(every_ms - took_ms, 0))

    async def close(self) -> None:
        """Closes the provider; its records stay valid for their time."""
        await self._tasks.stop()
        await super().close()

    def _record(
        self, entity: EntityRef, scope: str, values: Values, valid_for_ms: int, start: int | None
    ) -> ContextRecord:
        if start is None:
            start = self._link.clock.now_ms()
            before = self._provided.get((entity, scope))
            # Later by a millisecond at least: so it wins whatever way it takes. What begins much
            # later was announced, or provided by a wrong clock: this is true before it.
            if before is not None and start <= before.valid_from <= start + _SET_BACK_MS:
                start = before.valid_from + 1
        record = ContextRecord(self.name, entity, scope, start, start + valid_for_ms, dict(values))
        check_record(record)
        return record

    async def _put(
        self, record: ContextRecord, advertises: bool, within_ms: int, to: Address | None = None
    ) -> None:
        sent = record if self._signing is None else sign_record(record, self._signing)

        def make(id: int, _left_ms: int) -> Message:
            return Put(id, sent, advertises)

        what = f"{record.entity} {record.scope}"
        try:
            await self._link.call(make, within_ms=within_ms, what=what, to=to)
        except ContextNotFound:
            raise Unavailable(
                f"the broker did not confirm {what} in time",
                code="context.not_confirmed",
                hint="it may have it all the same; providing it again does no harm",
            ) from None

    def _carry_along(self, _broker: Address, before: Address | None) -> None:
        if before is None:
            return  # the first choice
        self._forget_past()
        name = f"carry along {self._link.choice.changes}"
        self._tasks.start(name, lambda: self._move_all(before))

    async def _move_all(self, before: Address) -> None:
        """Sends everything to the new broker, then has the old one forget it: else it would answer
        with this while the new one knows better.
        """
        moved: list[ContextRecord] = []
        for some in _batches(list(self._provided.values())):
            provided = await asyncio.gather(*(self._provide_again(one) for one in some))
            moved += [one for one, is_provided in zip(some, provided, strict=True) if is_provided]
        for some in _batches(moved):
            withdrawn = await asyncio.gather(*(self._withdraw(one, before) for one in some))
            if not any(withdrawn):
                return  # it is gone, which is why we changed

    async def _provide_again(self, record: ContextRecord) -> bool:
        try:
            await self._put(record, True, _WITHIN_MS)
            return True
        except RapportError as error:
            _log.info("context was not carried along", error=error.message)
            return False

    async def _withdraw(self, record: ContextRecord, before: Address) -> bool:
        """The same once more, but over in a moment; it begins just after it, so that it counts for
        no more than newer records of others, or our own. Whether the old broker took it.
        """
        start = record.valid_from + 1
        for lasts_ms in _FAREWELLS_MS:
            now = self._link.clock.now_ms()
            until = min(max(start, now) + lasts_ms, record.valid_until)
            if self._link.broker == before or until <= max(start, now):
                return True  # we are back there, or it is over anyway
            self._let_begin_after(start, record)
            ended = msgspec.structs.replace(record, valid_from=start, valid_until=until)
            try:
                await self._put(ended, False, _FAREWELL_WITHIN_MS, to=before)
                return True
            except InvalidInput:
                continue
            except RapportError as error:
                _log.info("the former broker was not updated", error=error.message)
                return False
        return False

    def _let_begin_after(self, start: int, record: ContextRecord) -> None:
        """A record that is sent again to a broker from which it was withdrawn must be newer."""
        key = (record.entity, record.scope)
        if self._provided.get(key) is record and start + 1 < record.valid_until:
            self._provided[key] = msgspec.structs.replace(record, valid_from=start + 1)

    def _forget_past(self) -> None:
        """Keeps memory within twice what is valid."""
        now = self._link.clock.now_ms()
        self._provided = {key: one for key, one in self._provided.items() if one.valid_until > now}
        self._forget_at = 2 * len(self._provided) + _LEAST_FORGOTTEN


def _may_pass(error: RapportError) -> bool:
    """Whether the next update may well be taken: no broker answered, or this one was too late,
    which is the only reason for which a broker calls a valid record a bad request.
    """
    return isinstance(error, Unavailable) or error.code == "context.bad_request"


def _batches(records: list[ContextRecord]) -> list[list[ContextRecord]]:
    return [records[at : at + _AT_ONCE] for at in range(0, len(records), _AT_ONCE)]
