"""Measurements of a simulated world: message sizes, ages of knowledge, request log, trace.
[EN-3, EN-11, EN-12]
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rapport.core.errors import InvalidInput, StoreUnavailable
from rapport.ensemble.protocol import (
    Headers,
    Message,
    OutgoingMessage,
    Part,
    PublishedKnowledge,
    Pull,
    PullParts,
    encode,
)
from rapport.ensemble.trace import IP, RADIO, Kind, Recorder
from rapport.kernel.clock import Now
from rapport.transport.base import Address
from rapport_lab.ensemble.simulation.radio import Neighbours

if TYPE_CHECKING:
    from rapport_lab.ensemble.simulation.world import World


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of messages. Knowledge whose body is bytes counts as it is, with any other body as
    `knowledge_bytes`; all else as the codec writes it.

    The time on air follows from them, so they decide when the radio is full.
    """

    knowledge_bytes: int = 256
    """The values of an actor: position, destination, seats, and the positions of some others."""
    frame_bytes: int = 16
    """What names, roles and times take beside the values."""

    def __post_init__(self) -> None:
        if min(self.knowledge_bytes, self.frame_bytes) < 0:
            raise InvalidInput(
                f"nothing has these sizes: {self}", code="ensemble.bad_sizes", hint="0 or more"
            )

    def size_of(self, message: Message) -> int:
        """The bytes of a message: at once for knowledge, some microseconds for all else."""
        if type(message) is PublishedKnowledge:
            body = message.body
            return self.frame_bytes + (len(body) if type(body) is bytes else self.knowledge_bytes)
        return len(encode(message))


_OLDEST: Final = 0xFFFF_FFFF


class Quartiles(NamedTuple):
    """Of sorted values the ones at a quarter, a half and three quarters of their number."""

    first: float
    median: float
    third: float
    values: int
    """How many there were."""


class KnowledgeAges:
    """The age of each version when a newer one took its place, at nodes that it is not local to.

    The age is now minus the creation of the version replaced; the simulated time if none was held.
    About 0.3 us and 4 bytes for each.
    """

    def __init__(self) -> None:
        self.ages = array("I")
        """In ms, in order of arrival."""
        self._created: dict[int, dict[str, int]] = {}

    def arrived(self, number: int, published: PublishedKnowledge, now: Now) -> int:
        """A newer version arrived at a node; returns the age in ms."""
        held = self._created.get(number)
        if held is None:
            held = self._created[number] = {}
        component = published.component
        created_ms = held.get(component)
        age = int(now.steady_ms) if created_ms is None else now.wall_ms - created_ms
        held[component] = published.created_ms
        # A clock that was set back makes negative ones, a wrong one absurd ones.
        self.ages.append(age if 0 <= age <= _OLDEST else min(max(age, 0), _OLDEST))
        return age

    def forget(self, number: int) -> None:
        """A node lost what it knew."""
        self._created.pop(number, None)

    def distinct_components(self, number: int) -> int:
        """Of how many other components a node has received anything."""
        return len(self._created.get(number, ()))

    def quartiles(self) -> Quartiles:
        """By index, as the source takes them; zeros when nothing arrived."""
        return quartiles(self.ages)


def quartiles(values: Sequence[float] | array[int]) -> Quartiles:
    """By index: of n sorted values those at n//4, n//2 and 3n//4."""
    count = len(values)
    if not count:
        return Quartiles(0.0, 0.0, 0.0, 0)
    ordered = np.sort(np.asarray(values))
    places = (count // 4, count // 2, 3 * count // 4)
    first, median, third = (float(ordered[place]) for place in places)
    return Quartiles(first, median, third, count)


_WORD: Final = pa.dictionary(pa.int32(), pa.string())
_ROWS: Final = 65_536

SCHEMA: Final = pa.schema(
    [
        pa.field("time_ms", pa.float64(), nullable=False),
        pa.field("what", _WORD, nullable=False),
        pa.field("node", _WORD, nullable=False),
        pa.field("other", _WORD, nullable=False),
        pa.field("medium", _WORD, nullable=False),
        pa.field("kind", _WORD, nullable=False),
        pa.field("component", _WORD, nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("bytes", pa.int32(), nullable=False),
        pa.field("age_ms", pa.int64()),
    ]
)
"""`what` is sent, received, aged (a newer version took the place of an older one, `age_ms` old) or
why something was missed: collided, lost, gave up, overflowed, nobody. `kind` is KN, HD, PL, PT or
PP.
"""

KINDS: Final[dict[type, str]] = {
    PublishedKnowledge: "KN",
    Headers: "HD",
    Pull: "PL",
    Part: "PT",
    PullParts: "PP",
}


class RequestLog:
    """Writes rows to a file as they come, one row group in memory at a time; whole after `close`.

    About 1 us per row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._columns: list[list[object]] = [[] for _ in SCHEMA.names]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        except OSError as error:
            raise StoreUnavailable(
                f"cannot write the request log {path}: {error.strerror or error}",
                code="ensemble.log_unavailable",
                hint="name a file in a directory that can be written",
            ) from None

    def write(
        self,
        time_ms: float,
        what: str,
        node: str,
        other: str,
        medium: str,
        message: Message,
        size_bytes: int,
        age_ms: int | None = None,
    ) -> None:
        """One row."""
        component = getattr(message, "component", "")
        version = getattr(message, "version", 0)
        kind = KINDS[type(message)]
        row = (time_ms, what, node, other, medium, kind, component, version, size_bytes, age_ms)
        for column, value in zip(self._columns, row, strict=True):
            column.append(value)
        self.rows += 1
        if len(self._columns[0]) >= _ROWS:
            self._flush()

    def close(self) -> None:
        """Writes the rest and ends the file; a second time is no error."""
        self._flush()
        self._writer.close()

    def __enter__(self) -> RequestLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _flush(self) -> None:
        if self._columns[0]:
            arrays = [
                pa.array(column, field.type)
                for column, field in zip(self._columns, SCHEMA, strict=True)
            ]
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA))
            for column in self._columns:
                column.clear()


EVERYBODY = "*"


class Witness:
    """Sees every message of a world; about 2 us for each that is sent and each that arrives."""

    def __init__(self, *, log: RequestLog | None = None, recorder: Recorder | None = None) -> None:
        self.recorder = recorder
        """Also what machines are given as `trace`, where rules are to be checked."""
        self._log = log
        self._linked: Neighbours = ()
        self._alive: set[int] = set()

    def watch(self, world: World) -> None:
        """Begins; called by the world."""
        self._world = world
        if world.radio is not None:
            world.radio.on_miss = self._missed_radio
            world.radio.on_renew.append(self._note_links)
        if world.ip is not None:
            world.ip.on_miss = self._missed_ip

    @property
    def _now(self) -> Now:
        return self._world.scheduler.now

    # --- nodes ---

    def started(self, number: int) -> None:
        """A node runs from now."""
        self._alive.add(number)
        if self.recorder is not None:
            self.recorder.happened(Kind.STARTED, self._world.names[number], self._now)
            self._note_links()

    def stopped(self, number: int) -> None:
        """It does no more."""
        self._alive.discard(number)
        if self.recorder is not None:
            self._note_links()
            self.recorder.happened(Kind.STOPPED, self._world.names[number], self._now)

    def _note_links(self) -> None:
        """Tells the trace which links came and went since it was last told."""
        if self.recorder is None or self._world.radio is None:
            return
        now, alive = self._now, self._alive
        neighbours = self._world.radio.neighbours
        present = [
            tuple(other for other in others if other in alive) if number in alive else ()
            for number, others in enumerate(neighbours)
        ]
        before = self._linked or [()] * len(present)
        for number, (old, new) in enumerate(zip(before, present, strict=True)):
            if old != new:
                self._tell(Kind.UNLINKED, number, sorted(set(old) - set(new)), now)
                self._tell(Kind.LINKED, number, sorted(set(new) - set(old)), now)
        self._linked = present

    def _tell(self, kind: Kind, number: int, others: Sequence[int], now: Now) -> None:
        names = self._world.names
        for other in others:
            if self.recorder is not None:
                node, name = names[number], names[other]
                self.recorder.happened(kind, node, now, other=name, medium=RADIO)

    # --- messages ---

    def sent(self, number: int, outgoing: OutgoingMessage, size_bytes: int) -> None:
        """A node sends something."""
        node, now = self._world.names[number], self._now
        if self.recorder is not None:
            self.recorder.sent(node, outgoing, now)
        if self._log is not None:
            medium, other = RADIO, ""
            if outgoing.to is not None:
                medium, other = IP, self._name_at(outgoing.to)
            message = outgoing.message
            self._log.write(now.steady_ms, "sent", node, other, medium, message, size_bytes)

    def received(
        self, number: int, message: Message, sender: int, medium: str, size_bytes: int
    ) -> None:
        """Something is about to be handed to a node."""
        names, now = self._world.names, self._now
        node, other = names[number], names[sender]
        if self.recorder is not None:
            self.recorder.received(node, message, other, medium, now)
        if self._log is not None:
            self._log.write(now.steady_ms, "received", node, other, medium, message, size_bytes)

    def aged(self, number: int, published: PublishedKnowledge, age_ms: int) -> None:
        """A newer version took the place of one of this age."""
        if self._log is not None:
            node, time_ms = self._world.names[number], self._world.scheduler.time_ms
            self._log.write(time_ms, "aged", node, published.node, "", published, 0, age_ms)

    def _missed_radio(
        self, sender: int, message: Message, receivers: Sequence[int], why: str
    ) -> None:
        names = self._world.names
        missing = [names[number] for number in receivers if number in self._alive]
        for node in missing if receivers else [EVERYBODY]:
            self._missed(node, names[sender], message, RADIO, why)

    def _missed_ip(self, sender: int, message: Message, to: Address, why: str) -> None:
        self._missed(self._name_at(to), self._world.names[sender], message, IP, why)

    def _missed(self, node: str, other: str, message: Message, medium: str, why: str) -> None:
        now = self._now
        if self._log is not None:
            self._log.write(now.steady_ms, why, node, other, medium, message, 0)
        if self.recorder is not None:
            about: dict[str, Any] = {}
            if isinstance(message, PublishedKnowledge | Part):
                about = {"component": message.component, "version": message.version}
            self.recorder.happened(
                Kind.LOST, node, now, other=other, medium=medium, detail=why, **about
            )

    def _name_at(self, address: Address) -> str:
        if self.recorder is not None:
            return self.recorder.name_of(address)
        return f"{address[0]}:{address[1]}"
