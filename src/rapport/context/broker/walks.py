"""Questions and answers that pass through this broker: walks, floods, look-ahead, replicas.
[CX-5, CX-6]

The path in a message is all the state that a walk needs. Answers and refusals return along it, and
leave replicas at some of the brokers that they pass. Look-ahead finds a record one hop ahead of a
walker, by probes or by the neighbours' Bloom filters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec

from rapport.context.broker.broker_settings import ReplicationSettings
from rapport.context.broker.broker_state import BrokerState
from rapport.context.broker.hops import EXPIRED, HopSender
from rapport.context.broker.search_strategies import FLOOD, NORMALIZED, WALK
from rapport.context.broker.updates import ReplicaInvalidation
from rapport.context.protocol import NOT_FOUND, Ask, FoundRecord, Have, Probe, SearchRefusal
from rapport.context.records import Outcome, QuestionKey, key_of
from rapport.core.context_record import ContextRecord
from rapport.core.errors import Corrupt
from rapport.kernel.clock import Chance, Now
from rapport.overlay.bloom import BloomFilter, bit_positions
from rapport.overlay.routing import Flood, SeenFilter, next_hop, way_back
from rapport.transport.base import Address, Sender

if TYPE_CHECKING:
    from rapport.context.broker.searches import Searches


def worth_a_copy(record: ContextRecord, settings: ReplicationSettings, wall_ms: int) -> bool:
    """Whether a record is valid now and for long enough."""
    return (
        settings.kind != "none"
        and record.valid_from <= wall_ms
        and record.valid_until - wall_ms >= settings.least_validity_ms
    )


def choose_marks(brokers: range, settings: ReplicationSettings, chance: Chance) -> tuple[int, ...]:
    """The places on the path, of those in `brokers`, where copies are to be left.

    `random` draws `copies` of them, or as many as there are up to `at_most`; `path` and `cache`
    take all (of the way back, and of all that the question passed); `passive` only the broker
    whose client asked.
    """
    kind = settings.kind
    if not brokers or kind == "none":
        return ()
    if kind == "passive":
        return (1,) if 1 in brokers else ()
    if kind != "random":
        return tuple(brokers)
    number = min(settings.copies or settings.at_most, len(brokers))
    return tuple(brokers) if number == len(brokers) else tuple(chance.sample(brokers, number))


def answer_path(
    trail: tuple[Address, ...], own: Address, settings: ReplicationSettings
) -> tuple[Address, ...]:
    """The way that an answer from here takes: the trail of the question without its detours,
    except when every broker that the question passed is to keep a copy.
    """
    if settings.kind == "cache" or (own not in trail and len(set(trail)) == len(trail)):
        return trail
    return way_back((*trail, own))[:-1]


MOST_BEHIND_MS = 5_000
"""A record that begins later than this by the local clock is not waited for: clocks of brokers
agree better.
"""


class AnswerRouter:
    """Forwards answers through this broker; the path in the message is all the state needed.

    The path of a Found or Refused is what is left of the way: its last address is where it goes
    next, its first the consumer, so its length is this broker's own place on the path.
    """

    __slots__ = ("_hop_sender", "_invalidation", "_state", "entry")

    entry: Searches
    """Receives answers at the broker whose client sent the request; set by the machine."""

    def __init__(
        self, state: BrokerState, hop_sender: HopSender, invalidation: ReplicaInvalidation
    ) -> None:
        self._state, self._hop_sender, self._invalidation = state, hop_sender, invalidation

    def refused_here(self, ask: Ask, why: str, now: Now) -> None:
        """A walker ends here."""
        state = self._state
        path = answer_path(ask.path, state.address, state.settings.replication)
        refused = SearchRefusal(
            ask.search, ask.walker, ask.hop, path, NOT_FOUND, why, doubtful=ask.doubtful
        )
        self._back(refused, now)

    def found(self, found: FoundRecord, sender: Sender, now: Now) -> None:
        """A record comes by."""
        if not found.path or not self._hop_sender.arrived(found, sender, now):
            return
        self._state.membership.heard_of(found.holder)
        if len(found.path) in found.marks:
            self._replicate(found.record, found.holder, now)
        self._back(found, now)

    def refused(self, refused: SearchRefusal, sender: Sender, now: Now) -> None:
        """A refusal comes by."""
        if refused.path and self._hop_sender.arrived(refused, sender, now):
            self._back(refused, now)

    def failed(self, message: FoundRecord | SearchRefusal, to: Address, now: Now) -> None:
        """The next on the way back is gone: go to the one before it."""
        if len(message.path) > 1:
            self._state.counts["back_repairs"] += 1
            self._back(message, now)
        else:
            self._state.counts["answers_lost"] += 1

    def answer(
        self, ask: Ask, record: ContextRecord, holder: Address, now: Now, *, ahead: int = 0
    ) -> None:
        """This broker has what a question looks for, or (`ahead` 1) one beside it: then this one is
        on the path, too.
        """
        state = self._state
        settings = state.settings.replication
        path = answer_path(ask.path, state.address, settings)
        marks: tuple[int, ...] = ()
        if worth_a_copy(record, settings, now.wall_ms):
            marks = choose_marks(range(1, len(path) + ahead), settings, state.chance)
            if len(path) in marks:
                self._replicate(record, holder, now)
            if marks:
                given = [path[mark] for mark in marks if mark < len(path)]
                self._invalidation.gave(record, given, now)
        hops = ask.hop + ahead
        found = FoundRecord(ask.search, ask.walker, ask.hop, record, path, marks, holder, hops)
        self._back(found, now)

    def _replicate(self, record: ContextRecord, holder: Address, now: Now) -> None:
        state = self._state
        if holder == state.address or self._invalidation.is_void(record, now):
            return
        if worth_a_copy(record, state.settings.replication, now.wall_ms):
            outcome = state.table.put(record, now.wall_ms, holder=holder)
            state.agenda.others_at(now.steady_ms + record.valid_until - now.wall_ms)
            state.counts["replicated"] += 1
            if outcome is Outcome.TAKEN:
                entity = record.entity
                self._invalidation.changed((entity.type, entity.id, record.scope), now)

    def _may_go_on(self, found: FoundRecord, now: Now) -> bool:
        """Whether a found record is still valid; the entry broker also waits for one that begins
        soon.
        """
        is_entry = len(found.path) == 1
        return found.record.valid_until > now.wall_ms and (
            is_entry or found.record.valid_from <= now.wall_ms
        )

    def _back(self, message: FoundRecord | SearchRefusal, now: Now) -> None:
        """Sends an answer one step back; at the entry broker to its client. An expired record
        becomes a refusal; one that has not begun by the local clock waits.
        """
        path = message.path
        if type(message) is FoundRecord and len(path) > 1:
            wait_ms = message.record.valid_from - now.wall_ms
            if 0 < wait_ms <= MOST_BEHIND_MS:
                self._state.agenda.at(now.steady_ms + wait_ms, self._back, message)
                return
        if type(message) is FoundRecord and not self._may_go_on(message, now):
            self._state.counts["expired_on_the_way"] += 1
            message = SearchRefusal(
                message.search, message.walker, message.hop, path, NOT_FOUND, EXPIRED
            )
        if len(path) > 1:
            if type(message) is FoundRecord:
                on: FoundRecord | SearchRefusal = FoundRecord(
                    message.search,
                    message.walker,
                    message.hop + 1,
                    message.record,
                    path[:-1],
                    message.marks,
                    message.holder,
                    message.hops,
                )
            else:
                assert type(message) is SearchRefusal
                on = SearchRefusal(
                    message.search,
                    message.walker,
                    message.hop + 1,
                    path[:-1],
                    message.status,
                    message.why,
                    message.doubtful,
                )
            self._hop_sender.send(on, path[-1], now)
        elif type(message) is FoundRecord:
            self.entry.found(message, now)
        else:
            assert type(message) is SearchRefusal
            self.entry.refused(message, now)


HOP_LIMIT = "the walk reached its hop limit"
OUT_OF_TIME = "the walk ran out of time"
EVERYWHERE = "the walk was everywhere it could go"
"""Why a walker returns; the text that the consumer gets."""

_TRAVELS = (WALK, FLOOD, NORMALIZED)
_FLOODS_KEPT_MS = 60_000.0


class WalkForwarder:
    """Forwards questions through this broker; keeps no state of walkers but pending hops."""

    __slots__ = ("_answer_router", "_flood", "_hop_sender", "_probes", "_state")

    def __init__(
        self,
        state: BrokerState,
        hop_sender: HopSender,
        answer_router: AnswerRouter,
        probes: NeighbourProbes,
    ) -> None:
        self._state, self._hop_sender, self._answer_router = state, hop_sender, answer_router
        self._probes = probes
        probes.walk_on = self.step
        seen = SeenFilter(state.settings.limits.remembered, _FLOODS_KEPT_MS)
        self._flood = Flood(seen, state.chance)

    def arrived(self, ask: Ask, sender: Sender, now: Now) -> None:
        """A question came from another broker."""
        search = self._state.settings.search
        too_long = len(ask.path) > search.hop_limit + 2
        if not ask.path or too_long or ask.hop < 0 or ask.strategy not in _TRAVELS:
            # Not acknowledged either: its sender finds another way.
            self._state.counts["malformed"] += 1
            return
        if self._hop_sender.arrived(ask, sender, now):
            if len(ask.path) > 1:
                self._state.membership.heard_of(ask.path[1])  # where the search began
            self.take(ask, sender.address, now)

    def take(self, ask: Ask, came_from: Address | None, now: Now) -> None:
        """Answers a question, or sends it on in the way it travels."""
        if ask.strategy != WALK and not self._spread(ask, came_from, now):
            return
        state = self._state
        held = state.answer(ask.question, ask.without, now, fresh=ask.fresh)
        if held is not None:
            holder = held.holder or state.address
            self._answer_router.answer(ask, held.record, holder, now)
        elif ask.strategy == WALK:
            self._walk(ask, now)

    def failed(self, ask: Ask, to: Address, now: Now) -> None:
        """A neighbour did not acknowledge: a walker takes another way, a flood has others.

        The neighbour may have the walker all the same, and then there are two: half the hops for
        this one keep their number bounded at any loss.
        """
        if ask.strategy != WALK:
            return
        self._state.counts["forward_repairs"] += 1
        half = (ask.hops_left + 1) // 2
        here = msgspec.structs.replace(ask, path=ask.path[:-1], hops_left=half, doubtful=True)
        self.step(here, now, also_avoid=(to,))

    def step(self, ask: Ask, now: Now, also_avoid: Collection[Address] = ()) -> None:
        """Sends a walker on: to a neighbour where it was not, else back, else home refused."""
        state = self._state
        if ask.hops_left <= 0 or ask.left_ms <= 0:
            why = HOP_LIMIT if ask.left_ms > 0 else OUT_OF_TIME
            self._answer_router.refused_here(ask, why, now)
            return
        membership = state.membership
        avoid: tuple[Address, ...] = tuple(also_avoid)
        if self._hop_sender.silent:
            avoid = (*self._hop_sender.avoided(now), *avoid)
        doubtful = ask.doubtful
        if avoid and not doubtful:
            doubtful = any(one in membership.neighbours and one not in ask.path for one in avoid)
        step = next_hop(
            membership.neighbours,
            ask.path,
            state.chance,
            own=state.address,
            avoid=avoid,
            revisit=not state.settings.search.avoid_visited,
        )
        if step.to is None:
            if doubtful != ask.doubtful:
                ask = msgspec.structs.replace(ask, doubtful=doubtful)
            self._answer_router.refused_here(ask, EVERYWHERE, now)
            return
        self._forward(ask, step.to, doubtful, now)

    def _walk(self, ask: Ask, now: Now) -> None:
        search = self._state.settings.search
        if ask.hops_left > 0 and ask.left_ms > 0 and search.look_ahead != "off":
            likely = self._probes.likely(ask)
            if likely is not None and likely not in self._hop_sender.avoided(now):
                self._state.counts["filter_hops"] += 1
                self._forward(ask, likely, ask.doubtful, now)
                return
            if self._probes.look(ask, now):
                return
        self.step(ask, now)

    def _forward(self, ask: Ask, to: Address, doubtful: bool, now: Now) -> None:
        settings = self._state.settings
        on = Ask(
            ask.search,
            ask.walker,
            ask.hop + 1,
            ask.question,
            (*ask.path, self._state.address),
            min(ask.left_ms, settings.limits.within_ms) - 1,
            min(ask.hops_left, settings.search.hop_limit) - 1,
            ask.strategy,
            ask.identity,
            doubtful,
            ask.without,
            ask.fresh,
        )
        self._hop_sender.send(on, to, now)

    def _spread(self, ask: Ask, came_from: Address | None, now: Now) -> bool:
        """Floods a question further, unless it ends here; false when it was here before."""
        state = self._state
        search = state.settings.search
        key = (ask.search, ask.walker)
        is_new = self._flood.is_new(key, now)
        if not is_new:
            state.counts["flood_repeats"] += 1
        held = state.answer(ask.question, ask.without, now, fresh=ask.fresh)
        ends = held is not None or ask.left_ms <= 0
        ttl = 0 if ends else min(ask.hops_left, search.flood_ttl)
        width = search.width if ask.strategy == NORMALIZED else 0
        neighbours = state.membership.neighbours
        for to in self._flood.spread(key, ttl, came_from, neighbours, now, width=width):
            self._forward(ask, to, ask.doubtful, now)
        return is_new


_DEEPEST = 1
_HASHES, _USEFUL_BITS = 5, 5
_LEAST_WAIT_MS = 1.0
_FILTER_AGE_MS = 500.0
_PROBES_KEPT_MS = 5_000.0

LookKey = tuple[int, int, int]


def filter_text(key: QuestionKey) -> str:
    """The text of a question in a Bloom filter."""
    return "\0".join(key)


class NeighbourProbes:
    """Walkers that wait for their probes, and the filters of neighbours."""

    __slots__ = (
        "_answer_router",
        "_filter",
        "_filter_until_ms",
        "_filters",
        "_invalidation",
        "_seen",
        "_state",
        "_waiting",
        "walk_on",
    )

    walk_on: Callable[[Ask, Now], None]
    """Where a walker goes whose probes found nothing; set by the part that walks."""

    def __init__(
        self, state: BrokerState, answer_router: AnswerRouter, invalidation: ReplicaInvalidation
    ) -> None:
        self._state, self._answer_router, self._invalidation = state, answer_router, invalidation
        self._waiting: dict[LookKey, tuple[Ask, float]] = {}
        self._seen = SeenFilter(state.settings.limits.remembered, _PROBES_KEPT_MS)
        self._filters: dict[Address, BloomFilter] = {}
        self._filter, self._filter_until_ms = b"", 0.0

    def __len__(self) -> int:
        """How many walkers wait."""
        return len(self._waiting)

    def look(self, ask: Ask, now: Now) -> bool:
        """Probes all neighbours that the walker has not visited; false if there is nothing to wait
        for. Costs one message to each, and one from each that has the record.
        """
        state = self._state
        search, limits = state.settings.search, state.settings.limits
        depth = search.look_ahead_depth - 1
        if search.look_ahead != "probe" or depth < 0 or len(self._waiting) >= limits.looking:
            return False
        passed = set(ask.path)
        to = [one for one in state.membership.neighbours if one not in passed]
        if not to or not (wait_ms := self._wait_ms(to, depth, ask.left_ms)):
            return False
        key = (ask.search, ask.walker, ask.hop)
        probe = Probe(*key, ask.question, depth, state.address, ask.without, ask.fresh)
        state.outbox += [(probe, neighbour) for neighbour in to]
        self._waiting[key] = (ask, now.steady_ms)
        state.agenda.at(now.steady_ms + wait_ms, self._nothing, key)
        return True

    def probed(self, probe: Probe, sender: Sender, now: Now) -> None:
        """Answers a probe with the record held here; otherwise probes further neighbours, once."""
        state = self._state
        key = (probe.search, probe.walker, probe.hop)
        if probe.asker == state.address:
            return
        held = state.answer(probe.question, probe.without, now, fresh=probe.fresh)
        if held is not None:
            state.send(Have(*key, held.record, held.holder or state.address), probe.asker)
            if worth_a_copy(held.record, state.settings.replication, now.wall_ms):
                self._invalidation.gave(held.record, (probe.asker,), now)
        elif 0 < probe.depth <= _DEEPEST and self._seen.first_time((key, probe.asker), now):
            further = msgspec.structs.replace(probe, depth=probe.depth - 1)
            for neighbour in state.membership.neighbours:
                if neighbour not in (sender.address, probe.asker):
                    state.send(further, neighbour)

    def have(self, have: Have, sender: Sender, now: Now) -> None:
        """A probe found it: the walk ends here."""
        waiting = self._waiting.get((have.search, have.walker, have.hop))
        if waiting is None or have.record.valid_until <= now.wall_ms:
            return
        ask, _began = waiting
        if have.holder in ask.without or (ask.fresh and have.holder != sender.address):
            return  # from one who does not know that this is no answer
        if (have.record.entity, have.record.scope) != (ask.question.entity, ask.question.scope):
            self._state.counts["malformed"] += 1
            return
        del self._waiting[have.search, have.walker, have.hop]
        self._state.counts["found_ahead"] += 1
        self._answer_router.answer(ask, have.record, have.holder, now, ahead=1)

    def likely(self, ask: Ask) -> Address | None:
        """A neighbour whose filter has it and where the walker was not."""
        if not self._filters or self._state.settings.search.look_ahead != "bloom":
            return None
        text = filter_text(key_of(ask.question))
        at, shape = [0], (0, 0)
        for neighbour in self._state.membership.neighbours:
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
        if not data or neighbour not in self._state.membership.neighbours:
            return
        try:
            if len(data) * 8 <= 2 * self._state.settings.search.filter_bits + 8:
                self._filters[neighbour] = BloomFilter.from_bytes(data)
        except Corrupt:
            self._state.counts["malformed"] += 1

    def forget(self, neighbour: Address) -> None:
        """It is no neighbour any more."""
        self._filters.pop(neighbour, None)

    def own_filter(self, now: Now) -> bytes:
        """The filter of what can be answered here, at most half a second old; none when it would
        be so full that it matches everything.
        """
        search = self._state.settings.search
        if search.look_ahead != "bloom":
            return b""
        if now.steady_ms >= self._filter_until_ms:
            self._filter_until_ms = now.steady_ms + _FILTER_AGE_MS
            table = self._state.table
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
        slowest = self._state.membership.slowest_ms(to)
        wait_ms = max(2 * slowest * (1 + depth), _LEAST_WAIT_MS)
        return min(wait_ms, self._state.settings.search.look_ahead_wait_ms, left_ms / 4)
