"""Looking ahead: who beside a walker has it, by asking them or by their filters. [CX-5]"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rapport.context.broker.answering import Answering
from rapport.context.broker.recalling import Recalling
from rapport.context.broker.workplace import Workplace
from rapport.context.messages import Ask, Have, Probe
from rapport.context.replication import worth_a_copy
from rapport.context.table import QuestionKey, key_of
from rapport.core.errors import Corrupt
from rapport.overlay.bloom import BloomFilter, bit_positions
from rapport.overlay.routing import SeenFilter
from rapport.transport.base import Address, Now, Sender

_DEEPEST = 1
_HASHES = 5
_LEAST_WAIT_MS = 1.0
_FILTER_AGE_MS = 500.0
_PROBES_KEPT_MS = 5_000.0
_USEFUL_BITS = 5

LookKey = tuple[int, int, int]


def filter_text(key: QuestionKey) -> str:
    """What a filter knows a question by."""
    return "\0".join(key)


class Looking:
    """Walkers that wait for their probes, and the filters of neighbours."""

    __slots__ = (
        "_answering",
        "_filter",
        "_filter_until_ms",
        "_filters",
        "_place",
        "_recalling",
        "_seen",
        "_waiting",
        "walk_on",
    )

    walk_on: Callable[[Ask, Now], None]
    """Where a walker goes whose probes found nothing; set by the part that walks."""

    def __init__(self, place: Workplace, answering: Answering, recalling: Recalling) -> None:
        self._place, self._answering, self._recalling = place, answering, recalling
        self._waiting: dict[LookKey, tuple[Ask, float]] = {}
        self._seen = SeenFilter(place.settings.limits.remembered, _PROBES_KEPT_MS)
        self._filters: dict[Address, BloomFilter] = {}
        self._filter, self._filter_until_ms = b"", 0.0

    def __len__(self) -> int:
        """How many walkers wait."""
        return len(self._waiting)

    def look(self, ask: Ask, now: Now) -> bool:
        """Probes all neighbours where the walker was not; false when there is nothing to wait for.
        Costs one message to each, and one back from who has it.
        """
        place = self._place
        search, limits = place.settings.search, place.settings.limits
        depth = search.look_ahead_depth - 1
        if search.look_ahead != "probe" or depth < 0 or len(self._waiting) >= limits.looking:
            return False
        passed = set(ask.path)
        to = [one for one in place.membership.neighbours if one not in passed]
        if not to or not (wait_ms := self._wait_ms(to, depth, ask.left_ms)):
            return False
        key = (ask.search, ask.walker, ask.hop)
        probe = Probe(*key, ask.question, depth, place.address, ask.without, ask.fresh)
        place.outbox += [(probe, neighbour) for neighbour in to]
        self._waiting[key] = (ask, now.steady_ms)
        place.agenda.at(now.steady_ms + wait_ms, self._nothing, key)
        return True

    def probed(self, probe: Probe, sender: Sender, now: Now) -> None:
        """Another broker looks ahead: tell it what is here, else ask those behind, once."""
        place = self._place
        key = (probe.search, probe.walker, probe.hop)
        if probe.asker == place.address:
            return
        held = place.answer(probe.question, probe.without, now, fresh=probe.fresh)
        if held is not None:
            place.send(Have(*key, held.record, held.holder or place.address), probe.asker)
            if worth_a_copy(held.record, place.settings.replication, now.wall_ms):
                self._recalling.gave(held.record, (probe.asker,), now)
        elif 0 < probe.depth <= _DEEPEST and self._seen.first_time((key, probe.asker), now):
            further = msgspec.structs.replace(probe, depth=probe.depth - 1)
            for neighbour in place.membership.neighbours:
                if neighbour not in (sender.address, probe.asker):
                    place.send(further, neighbour)

    def have(self, have: Have, sender: Sender, now: Now) -> None:
        """A probe found it: the walk ends here."""
        waiting = self._waiting.get((have.search, have.walker, have.hop))
        if waiting is None or have.record.valid_until <= now.wall_ms:
            return
        ask, _began = waiting
        if have.holder in ask.without or (ask.fresh and have.holder != sender.address):
            return  # from one who does not know that this is no answer
        if (have.record.entity, have.record.scope) != (ask.question.entity, ask.question.scope):
            self._place.counts["malformed"] += 1
            return
        del self._waiting[have.search, have.walker, have.hop]
        self._place.counts["found_ahead"] += 1
        self._answering.found_ahead(ask, have.record, have.holder, now)

    def likely(self, ask: Ask) -> Address | None:
        """A neighbour whose filter has it and where the walker was not."""
        if not self._filters or self._place.settings.search.look_ahead != "bloom":
            return None
        text = filter_text(key_of(ask.question))
        at, shape = [0], (0, 0)
        for neighbour in self._place.membership.neighbours:
            kept = self._filters.get(neighbour)
            if kept is None or neighbour in ask.path:
                continue
            if shape != (kept.bits, kept.hashes):
                shape = (kept.bits, kept.hashes)
                at = bit_positions(text, *shape)
            if kept.has(at):
                return neighbour
        return None

    def learned(self, neighbour: Address, data: bytes) -> None:
        """A pong brought a neighbour's filter; what is no filter, or too large, is not kept."""
        if not data or neighbour not in self._place.membership.neighbours:
            return
        try:
            if len(data) * 8 <= 2 * self._place.settings.search.filter_bits + 8:
                self._filters[neighbour] = BloomFilter.from_bytes(data)
        except Corrupt:
            self._place.counts["malformed"] += 1

    def forget(self, neighbour: Address) -> None:
        """It is no neighbour any more."""
        self._filters.pop(neighbour, None)

    def own_filter(self, now: Now) -> bytes:
        """The filter of what can be answered here, at most half a second old; none when it would
        be so full that it says yes to everything.
        """
        search = self._place.settings.search
        if search.look_ahead != "bloom":
            return b""
        if now.steady_ms >= self._filter_until_ms:
            self._filter_until_ms = now.steady_ms + _FILTER_AGE_MS
            table = self._place.table
            bits = -(-search.filter_bits // 8) * 8
            if len(table) * _USEFUL_BITS > bits:
                self._filter = b""
            else:
                texts = map(filter_text, table.questions())
                self._filter = BloomFilter.of(texts, bits, _HASHES).to_bytes()
        return self._filter

    def _nothing(self, key: LookKey, now: Now) -> None:
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            ask, began = waiting
            spent = int(now.steady_ms - began)
            self.walk_on(msgspec.structs.replace(ask, left_ms=ask.left_ms - spent), now)

    def _wait_ms(self, to: list[Address], depth: int, left_ms: int) -> float:
        """Two round trips to the slowest of these, bounded; each hop deeper as long again."""
        slowest = self._place.membership.slowest_ms(to)
        wait_ms = max(2 * slowest * (1 + depth), _LEAST_WAIT_MS)
        return min(wait_ms, self._place.settings.search.look_ahead_wait_ms, left_ms / 4)
