"""Consumers read in their own terms: root is said in each interpretation once, at the last hop.
[ME-9]

An event is transformed when the first consumer of an interpretation needs it, and not again for the
others. One that came in the consumer's own interpretation is given as it was received.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from rapport.channel.access.rights import Rights
from rapport.channel.channel import Channels
from rapport.channel.query.query_kinds import InterpretationView
from rapport.core.errors import InterpretationError, UnknownName, Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Clock, SystemClock
from rapport.kernel.tasks import ClosableComponent, close_all
from rapport.mediation.binding import RAW_PREFIX
from rapport.mediation.in_force import InForce
from rapport.mediation.model.surroundings import SiteTables, Surroundings
from rapport.mediation.outgoing.cache import MOST_BYTES, Outcomes, key_of
from rapport.mediation.outgoing.counts import Told
from rapport.mediation.outgoing.late import LateSpeech, RawSources
from rapport.mediation.outgoing.originals import (
    DeclaredTypes,
    Raw,
    as_received,
    is_original,
    raw_of,
    read_raws,
)
from rapport.mediation.outgoing.query import query_view
from rapport.mediation.outgoing.speech import Said, Speech, functions_needed
from rapport.mediation.repository import Repository
from rapport.mediation.site_functions import SiteFunctions

_AT_ONCE = 200
"""Events that are said before others get their turn."""


class Outgoing:
    """What a node says, in everybody's own words. All calls belong to one event loop.

    Positions stay those of the channel, so places and tokens mean the same in every interpretation.
    What cannot be said is left out, counted, logged once per reason and listed (`told`). What was
    made is forgotten when the repository changes, what was said also when tables do.
    """

    def __init__(
        self,
        repository: Repository,
        channels: Channels,
        *,
        clock: Clock | None = None,
        rights: Rights | None = None,
        sources: RawSources | None = None,
        tables: Callable[[], SiteTables | None] | None = None,
        functions: Callable[[Iterable[str]], SiteFunctions] | None = None,
        cache_bytes: int = MOST_BYTES,
    ) -> None:
        """`rights`: an original goes only to who may read its raw channel (without: to all);
        `sources`: gives raw channels their meaning; `functions`: opens functions of the site.
        """
        self.repository, self._channels, self._rights = repository, channels, rights
        self._clock: Clock = clock or SystemClock()
        self.hides: Callable[[str], bool] = lambda _channel: False
        """Whether readers of a channel are given something else than what it holds: an original
        would tell them what they were not to see.
        """
        self._sources, self._tables, self._open_functions = sources, tables, functions
        self._cache, self.told = Outcomes(cache_bytes), Told()
        self._generation, self._rows = repository.generation, self._revision()
        self._speeches: dict[str, Speech] = {}
        self._late: dict[tuple[str, str], LateSpeech] = {}
        self._views: dict[str, InterpretationView] = {}
        self._types: dict[str, DeclaredTypes] = {}
        self._opened: dict[Speech, SiteFunctions] = {}
        self._at_work: Counter[Speech] = Counter()
        self._over: dict[Speech, SiteFunctions] = {}
        """Of words that are forgotten, while something is still being said in them."""
        self._thread: ThreadPoolExecutor | None = None

    def speech(self, interpretation: str) -> Speech:
        """How the interpretation says root now; raises UnknownName, InterpretationError."""
        if self._generation != self.repository.generation:
            self._forget()
        if self._rows != self._revision():
            self._rows = self._revision()
            self._cache.clear()
        if interpretation not in self._speeches:
            self._speeches[interpretation] = self._begin(interpretation)
        return self._speeches[interpretation]

    async def view(
        self,
        channel: str,
        stored: Sequence[StoredEvent],
        interpretation: str,
        *,
        identity: str = "",
    ) -> list[StoredEvent]:
        """Events of a channel as a consumer gets them: fewer, or more with the same position.

        Raises UnknownName, InterpretationError, ChannelUnavailable, and Unsupported for a raw
        channel whose events can be understood only in their order.
        """
        speech = self.speech(interpretation)
        with self._speaking(speech):
            if channel.startswith(RAW_PREFIX):
                said = await self._said_late(channel, stored, speech)
            elif speech.is_root:
                return list(stored)
            else:
                said = await self._said(channel, stored, speech, identity)
        return [
            StoredEvent(one.position, one.received, event)
            for one, each in zip(stored, said, strict=True)
            for event in each.events
        ]

    def query_view(self, interpretation: str) -> InterpretationView:
        """How conditions in the consumer's words are understood; for `Views.use`."""
        speech = self.speech(interpretation)
        if interpretation not in self._views:

            def say(stored: StoredEvent) -> Said:
                key = key_of(speech, stored)
                known = self._cache.get(key)
                return known or self._say_new("", stored, speech, speech.name, key)

            self._views[interpretation] = query_view(speech, self.repository.in_force, say)
        return self._views[interpretation]

    def prepare(self, in_force: InForce, tables: SiteTables | None) -> Callable[[], None]:
        """Makes what consumers will need of these interpretations, beside the loop; the result puts
        it in use, and is to be called on the loop in one step with the change of the repository.

        Those that call functions of the site are made when the first event comes, in the thread
        that the functions belong to.
        """
        speeches: dict[str, Speech] = {}
        for name, former in self._speeches.copy().items():
            try:
                if functions_needed(in_force, name):
                    continue
                speech = Speech(in_force, name, None, Surroundings(tables))
            except (UnknownName, InterpretationError):
                continue  # who reads in it is told when it comes
            speech.prepare(former.types_said())
            speeches[name] = speech

        def take_over() -> None:
            self._forget()
            self._speeches = speeches

        return take_over

    async def close(self) -> None:
        """Ends workers and threads; what functions of the site are asked meanwhile is rejected."""
        await close_all(self._endings())

    def _endings(self) -> Iterator[ClosableComponent]:
        opened = [*self._opened.values(), *self._over.values()]
        self._opened, self._over = {}, {}
        for functions in opened:
            # Waits for a process to end.
            yield "functions", partial(asyncio.to_thread, functions.close)
        if self._thread is not None:
            yield "thread", partial(self._thread.shutdown, wait=False)

    # --- events of root ---------------------------------------------------------------------------

    async def _said(
        self, channel: str, stored: Sequence[StoredEvent], speech: Speech, identity: str
    ) -> list[Said]:
        said: list[Said | None] = [
            Said((one.event,), is_made=False) if speech.passes(one.event) else None
            for one in stored
        ]
        raws = {
            number: raw
            for number, one in enumerate(stored)
            if (raw := raw_of(one.event, speech.stamp))
            and self._may_read(identity, raw.channel)
            and not (self.hides(channel) or self.hides(raw.channel))
        }
        if raws:
            originals = await self._originals(stored, raws, speech)
            for number, original in originals.items():
                said[number] = original
        others = [number for number, one in enumerate(said) if one is None]
        made = await self._made(channel, [stored[number] for number in others], speech, speech.name)
        for number, one in zip(others, made, strict=True):
            said[number] = one
        return [one for one in said if one is not None]

    async def _originals(
        self, stored: Sequence[StoredEvent], raws: dict[int, Raw], speech: Speech
    ) -> dict[int, Said]:
        """Originals by number, as far as they are there still. One of which several readings were
        made is given once, for the first of them.
        """
        numbers = list(raws)
        keys: list[Hashable] = [("original", *key_of(speech, stored[one])) for one in numbers]
        counts = self.told.of(speech.name)

        async def make(missing: list[int]) -> list[Said]:
            places = [raws[numbers[each]] for each in missing]
            found = await read_raws(self._channels, places)
            said = []
            for each, place in zip(missing, places, strict=True):
                raw = found.get(place)
                is_there = raw is not None and is_original(raw, stored[numbers[each]].event)
                counts.originals += is_there
                said.append(
                    Said((self._as_received(raw, place, speech),), is_made=False)
                    if is_there and raw is not None
                    else Said((), "raw.gone")
                )
            return said

        counts.from_cache += sum(self._cache.get(key) is not None for key in keys)
        sizes = [len(stored[number].event.data) for number in numbers]
        all_said = await self._cache.once(keys, sizes, make)
        there = {number: one for number, one in zip(numbers, all_said, strict=True) if one.events}
        first = {raws[number]: number for number in reversed(there)}
        nothing = Said((), is_made=False)
        return {n: one if first[raws[n]] == n else nothing for n, one in there.items()}

    def _as_received(self, raw: Event, place: Raw, speech: Speech) -> Event:
        source = place.channel.removeprefix(RAW_PREFIX)
        binding = self._sources.binding(source) if self._sources is not None else None
        if speech.name not in self._types:
            self._types[speech.name] = DeclaredTypes(self.repository.in_force, speech.name)
        return as_received(raw, speech.stamp, self._types[speech.name].type_of(raw, binding))

    def _may_read(self, identity: str, channel: str) -> bool:
        return self._rights is None or self._rights.allows(identity, "subscribe", channel)

    # --- raw channels -----------------------------------------------------------------------------

    async def _said_late(
        self, channel: str, stored: Sequence[StoredEvent], speech: Speech
    ) -> list[Said]:
        if self._sources is None:
            raise Unsupported("reading raw channels in an interpretation", "this program")
        source = channel.removeprefix(RAW_PREFIX)
        if (source, speech.name) not in self._late:
            in_force = self.repository.in_force
            late = LateSpeech(source, speech, self._sources, in_force)
            self._late[source, speech.name] = late
        late = self._late[source, speech.name]
        is_new = [key_of(late, one) not in self._cache for one in stored]
        said = await self._made(channel, stored, late, speech.name)
        originals = (new and not one.is_made for new, one in zip(is_new, said, strict=True))
        self.told.of(speech.name).originals += sum(originals) if late.is_own else 0
        return said

    # --- once for all -----------------------------------------------------------------------------

    async def _made(
        self, channel: str, stored: Sequence[StoredEvent], words: Speech | LateSpeech, name: str
    ) -> list[Said]:
        """What each event becomes, known from before or made now."""
        keys = [key_of(words, one) for one in stored]
        if not words.may_block and not self._cache.is_making and self._are_few(keys):
            return self._made_now(channel, stored, keys, words, name)
        self.told.of(name).from_cache += sum(key in self._cache for key in keys)

        async def make(numbers: list[int]) -> list[Said]:
            said: list[Said] = []
            with self._speaking(words if isinstance(words, Speech) else words.speech):
                for begin in range(0, len(numbers), _AT_ONCE):
                    part = [stored[number] for number in numbers[begin : begin + _AT_ONCE]]
                    said += await self._say_all(words, part)
                    await self._clock.sleep(0)
            for number, one in zip(numbers, said, strict=True):
                self.told.made(name, channel, stored[number], one)
            return said

        return await self._cache.once(keys, [len(one.event.data) for one in stored], make)

    def _are_few(self, keys: Sequence[Hashable]) -> bool:
        """Whether nobody waits too long while those of them that are not known are made."""
        return len(keys) <= _AT_ONCE or sum(key not in self._cache for key in keys) <= _AT_ONCE

    def _made_now(
        self,
        channel: str,
        stored: Sequence[StoredEvent],
        keys: Sequence[Hashable],
        words: Speech | LateSpeech,
        name: str,
    ) -> list[Said]:
        """All that are not known in one call; the same event may stand twice in what is asked."""
        said = {key: found for key in keys if (found := self._cache.get(key)) is not None}
        new = {key: one for key, one in zip(keys, stored, strict=True) if key not in said}
        for (key, one), made in zip(
            new.items(), words.say_all(list(new.values())) if new else (), strict=True
        ):
            self._keep(channel, one, made, name, key)
            said[key] = made
        self.told.of(name).from_cache += len(keys) - len(new)
        return [said[key] for key in keys]

    def _say_new(
        self,
        channel: str,
        stored: StoredEvent,
        words: Speech | LateSpeech,
        name: str,
        key: Hashable,
    ) -> Said:
        said = words.say(stored)
        self._keep(channel, stored, said, name, key)
        return said

    def _keep(
        self, channel: str, stored: StoredEvent, said: Said, name: str, key: Hashable
    ) -> None:
        self.told.made(name, channel, stored, said)
        self._cache.put(key, said, len(stored.event.data))

    async def _say_all(
        self, words: Speech | LateSpeech, stored: Sequence[StoredEvent]
    ) -> list[Said]:
        if not words.may_block:
            return words.say_all(stored)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._own_thread(), words.say_all, stored)

    # --- what holds until the next change ---------------------------------------------------------

    def _begin(self, interpretation: str) -> Speech:
        in_force = self.repository.in_force
        names = functions_needed(in_force, interpretation)
        functions: SiteFunctions | None = None
        if names and self._open_functions is not None:
            functions = self._open_functions(names)
        tables = self._tables() if self._tables is not None else None
        speech = Speech(in_force, interpretation, functions, Surroundings(tables))
        if functions is not None:
            self._opened[speech] = functions
        return speech

    def _revision(self) -> int:
        """Of the rows that conversions look things up in."""
        tables = self._tables() if self._tables is not None else None
        return tables.revision if tables is not None else 0

    def _forget(self) -> None:
        self._generation = self.repository.generation
        self._speeches, self._late, self._views, self._types = {}, {}, {}, {}
        self._cache.clear()
        opened, self._opened = self._opened, {}
        for speech, functions in opened.items():
            if speech in self._at_work:
                self._over[speech] = functions
            else:
                self._own_thread().submit(functions.close)

    @contextmanager
    def _speaking(self, speech: Speech) -> Iterator[None]:
        """What is begun in these words is said in them to its end, whatever changes meanwhile: only
        then its functions are closed.
        """
        self._at_work[speech] += 1
        try:
            yield
        finally:
            self._at_work[speech] -= 1
            if not self._at_work[speech]:
                del self._at_work[speech]
                if speech in self._over:
                    self._own_thread().submit(self._over.pop(speech).close)

    def _own_thread(self) -> ThreadPoolExecutor:
        """Functions of the site belong to one thread."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="outgoing")
        return self._thread
