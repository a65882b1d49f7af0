"""Changes of policies put on record and carried out, at one place of the stream. [PO-9, PO-10]

What may fail comes before the record: then everything is as it was. Killed or failing after it, the
engine goes back to its last commit and meets the changes in their place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from rapport.core.errors import Conflict
from rapport.kernel.clock import Clock
from rapport.policy.engine.engine import PolicyEngine
from rapport.policy.engine.places import PlanChange, StreamPosition
from rapport.policy.life.asking import ChangeResult
from rapport.policy.life.changes import PolicyChange, RecordedChange, change_id
from rapport.policy.life.compiled import CompiledTexts
from rapport.policy.life.drafting import DraftChange, plan_change
from rapport.policy.life.record import PolicyRecord

_LOOK_EVERY_MS, _MOST_LOOKS = 20, 1_500
RenewTables = Callable[[], Awaitable[None]]
"""Goes over to other tables and another ontology."""


class ChangeExecutor:
    """Who carries changes out. All calls but `caught_up` are made while holding the engine's turn.

    Holds nothing of its own.
    """

    def __init__(self, record: PolicyRecord, engine: PolicyEngine, clock: Clock) -> None:
        self._record, self._engine, self._clock = record, engine, clock

    @asynccontextmanager
    async def caught_up(self) -> AsyncIterator[None]:
        """The engine's turn, once it has met again all that it may have read before a crash: that
        is judged by what held then. Raises Conflict when it takes long.
        """
        for _ in range(_MOST_LOOKS):
            async with self._engine.turn:
                await self._record.read_on()
                await self._engine.place()
                if not self._engine.reads_again:
                    yield
                    return
            await self._clock.sleep(_LOOK_EVERY_MS)
        raise Conflict(
            "policies still read again what they had read before the last stop",
            code="policy.catching_up",
            hint="ask again in a moment",
        )

    async def carry_out(self, drafts: Sequence[DraftChange]) -> list[ChangeResult]:
        """Puts changes on record, then carries them out."""
        if not drafts:
            return []
        return await self._carry_out(drafts, self._record.texts, None)

    async def turn_to(
        self, texts: CompiledTexts, drafts: Sequence[DraftChange], renew: RenewTables | None
    ) -> list[ChangeResult]:
        """The same with other meanings of all texts. `renew` is called when all is on record and
        nothing runs any more that is to end here.
        """
        await self._engine.commit()
        return await self._carry_out(drafts, texts, renew)

    async def _carry_out(
        self, drafts: Sequence[DraftChange], texts: CompiledTexts, renew: RenewTables | None
    ) -> list[ChangeResult]:
        place = await self._engine.place()
        first = len(self._record.registry.changes) + 1
        changes = [change_of(draft, place, first + n) for n, draft in enumerate(drafts)]
        try:
            recorded = await self._recorded(changes)
            self._record.texts = texts
            plans = [self._plan_change(kept) for kept in recorded]
            if renew is not None:
                for change in plans:
                    self._engine.make_way(change)
                await renew()
            for change in plans:
                await self._engine.take_change(change)
        except BaseException:
            self._engine.start_over()
            raise
        return [self._done(change) for change in changes]

    async def _recorded(self, changes: Sequence[PolicyChange]) -> list[RecordedChange]:
        try:
            return await self._record.append(changes)
        except Exception:
            await self._record.read_on()  # it may have been written all the same
            known = [self._record.registry.known.get(change_id(change)) for change in changes]
            if None in known:
                raise
            return [kept for kept in known if kept is not None]

    def _done(self, changed: PolicyChange) -> ChangeResult:
        entry = self._record.registry.entries.get(changed.name)
        return ChangeResult(
            changed=True,
            name=changed.name,
            what=changed.what,
            version=changed.version or (entry.version if entry is not None else ""),
            after=changed.place.after,
            problems=changed.problems,
        )

    def _plan_change(self, kept: RecordedChange) -> PlanChange:
        entry = self._record.registry.entries.get(kept.changed.name)
        return plan_change(kept, entry, self._record.texts)


def change_of(draft: DraftChange, place: StreamPosition, number: int) -> PolicyChange:
    """The change that a draft is at a place."""
    return PolicyChange(place=place, number=number, **msgspec.structs.asdict(draft))
