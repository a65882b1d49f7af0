"""The audit log of a broker, in the channel `context.audit`. [CX-9]

Every refusal, command and batch of updates is a line. Reads are summed up into a line per identity,
entity, status and minute, so that a high rate of reads causes few writes. Pure: the server appends
the lines.
"""

from __future__ import annotations

import msgspec

from rapport.context.broker.broker_state import AuditEffect
from rapport.context.protocol import NOT_ALLOWED, NOT_FOUND, PROCESSED, RECEIVED
from rapport.core.context_record import EntityRef
from rapport.core.event import Event, as_subject, content_id
from rapport.kernel.clock import Clock
from rapport.transport.addresses import format_address
from rapport.transport.base import Address

AUDIT_CHANNEL = "context.audit"
AUDIT_TYPE = "rapport.context.audit"
_MINUTE_MS = 60_000
_MOST_SUMS = 10_000
_REFUSALS_A_MINUTE = 100
"""Of one identity; what is more is counted in one line: a flood of them fills no disk."""


class AuditLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: between `since` and `until`, `identity` did `what` so many times."""

    what: str
    """`read`, `write`, `control` or `refused`."""
    identity: str
    since: int
    until: int
    count: int
    entity: str = ""
    scope: str = ""
    status: int = 0
    why: str = ""
    address: str = ""
    """Where a refused datagram came from."""
    entities: tuple[str, ...] = ()
    """Of a batch of updates, the first few."""
    positions: tuple[int, int] | None = None
    """Of a batch of updates: its first and last place in the channel `context`."""

    def to_event(self, *, source: str, number: int) -> Event:
        """The line as an event; `number` distinguishes equal lines."""
        data = msgspec.json.encode(self)
        return Event(
            source=source,
            id=content_id(AUDIT_TYPE, source, str(number), data.decode()),
            type=AUDIT_TYPE,
            subject=as_subject(self.entity),
            time=self.until,
            data=data,
        )


class _Sum(msgspec.Struct):
    since: int
    until: int
    count: int = 0


class AuditTrail:
    """Collects operations and returns lines when they are due; memory is bounded."""

    def __init__(self) -> None:
        self._reads: dict[tuple[str, EntityRef, int], _Sum] = {}
        self._refused: dict[str, _Sum] = {}
        self._lines: list[AuditLine] = []
        self._minute_began: int | None = None

    def read(self, identity: str, entity: EntityRef, status: int, wall_ms: int) -> None:
        """Counts a read of an entity with this status."""
        if self._minute_began is None:
            self._minute_began = wall_ms
        found = self._reads.get((identity, entity, status))
        if found is None:
            if len(self._reads) >= _MOST_SUMS:
                self._end_minute()
            found = self._reads[identity, entity, status] = _Sum(wall_ms, wall_ms)
        found.until = wall_ms
        found.count += 1

    def refused(
        self,
        identity: str,
        wall_ms: int,
        *,
        entity: str = "",
        scope: str = "",
        status: int = 0,
        why: str = "",
        address: str = "",
    ) -> None:
        """Records a refusal: a line of its own, up to a limit per minute."""
        if self._minute_began is None:
            self._minute_began = wall_ms
        if identity not in self._refused and len(self._refused) >= _MOST_SUMS:
            self._end_minute()
        found = self._refused.setdefault(identity, _Sum(wall_ms, wall_ms))
        found.until = wall_ms
        found.count += 1
        if found.count <= _REFUSALS_A_MINUTE:
            self._lines.append(
                AuditLine(
                    what="refused",
                    identity=identity,
                    since=wall_ms,
                    until=wall_ms,
                    count=1,
                    entity=entity,
                    scope=scope,
                    status=status,
                    why=why,
                    address=address,
                )
            )

    def add(self, line: AuditLine) -> None:
        """A line that is whole: updates, commands."""
        self._lines.append(line)

    def due(self, wall_ms: int, *, all_of_it: bool = False) -> list[AuditLine]:
        """Lines to append now; sums only when their minute is over, or when all are wanted."""
        began = self._minute_began
        is_over = began is not None and not 0 <= wall_ms - began < _MINUTE_MS
        if is_over or all_of_it:
            self._end_minute()
        lines, self._lines = self._lines, []
        return lines

    def _end_minute(self) -> None:
        for (identity, entity, status), found in self._reads.items():
            self._lines.append(
                AuditLine(
                    what="read",
                    identity=identity,
                    entity=str(entity),
                    status=status,
                    since=found.since,
                    until=found.until,
                    count=found.count,
                )
            )
        for identity, found in self._refused.items():
            if (more := found.count - _REFUSALS_A_MINUTE) > 0:
                self._lines.append(
                    AuditLine(
                        what="refused",
                        identity=identity,
                        since=found.since,
                        until=found.until,
                        count=more,
                        why="as many more as these, not written one by one",
                    )
                )
        self._reads.clear()
        self._refused.clear()
        self._minute_began = None


OWN_PROCESS: Address = ("own process", 0)
"""Where the broker's own process is: requests from there came over no network."""

_DONE = frozenset((PROCESSED, RECEIVED, NOT_FOUND))


class BrokerAudit:
    """Turns operations into lines: reads are summed up, refusals and commands stand alone."""

    def __init__(self, clock: Clock, *, is_kept: bool) -> None:
        """Without a channel nothing is recorded."""
        self._clock, self._is_kept = clock, is_kept
        self.trail = AuditTrail()

    def note(self, effect: AuditEffect) -> None:
        """Records an operation of a client; updates are recorded by the batch when stored."""
        if not self._is_kept:
            return
        if effect.status not in _DONE:
            self._refused(effect)
        elif effect.what in ("request", "watch") and effect.entity is not None:
            wall_ms = self._clock.now_ms()
            self.trail.read(effect.identity, effect.entity, effect.status, wall_ms)
        elif effect.what != "put":
            self._commanded(effect)

    def note_request(self, identity: str, entity: EntityRef, scope: str, status: int) -> None:
        """Records a request of this process on behalf of an identity."""
        self.note(AuditEffect("request", identity, OWN_PROCESS, status, entity, scope))

    def note_status(self, identity: str, address: Address) -> None:
        """Records a refused request for the status."""
        self.note(AuditEffect("status", identity, address, NOT_ALLOWED))

    def due(self, all_of_it: bool) -> list[AuditLine]:
        """Lines to append now."""
        return self.trail.due(self._clock.now_ms(), all_of_it=all_of_it)

    def _commanded(self, effect: AuditEffect) -> None:
        wall_ms = self._clock.now_ms()
        self.trail.add(
            AuditLine(
                what="control",
                identity=effect.identity,
                since=wall_ms,
                until=wall_ms,
                count=1,
                status=effect.status,
                why=effect.what,
                address=_address_text(effect.address),
            )
        )

    def _refused(self, effect: AuditEffect) -> None:
        self.trail.refused(
            effect.identity,
            self._clock.now_ms(),
            entity=str(effect.entity) if effect.entity is not None else "",
            scope=effect.scope,
            status=effect.status,
            why=effect.what,
            address=_address_text(effect.address),
        )


def _address_text(address: Address) -> str:
    return "" if address == OWN_PROCESS else format_address(address)
