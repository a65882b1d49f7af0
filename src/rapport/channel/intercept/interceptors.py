"""All interceptors of a node: added, removed and listed while it runs. [CH-10]

Those added by code live as long as the process. Declared ones are kept in the records and made
again at the next start; following ones begin with the event after they were added, and when they
are removed finish what was appended by then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from rapport.channel.access.signing import is_changed
from rapport.channel.channel import Appended, Channel, Channels
from rapport.channel.dead.replay import KeepsRecords
from rapport.channel.intercept.chain import Drop, pass_appended, pass_delivered
from rapport.channel.intercept.followers import Followers
from rapport.channel.intercept.following import reader_of
from rapport.channel.intercept.interceptor import (
    At,
    Declared,
    FollowingInterceptor,
    Interceptor,
    Missing,
    Shown,
    Standing,
    shown,
)
from rapport.channel.intercept.keeping import (
    INTERCEPTED,
    drop_record,
    forget_changes,
    load_declared,
    off_record,
    orphans,
    put_declared,
)
from rapport.channel.intercept.kinds import Workshop, make_interceptor
from rapport.channel.intercept.roster import Roster
from rapport.channel.reserved import READER_PREFIX
from rapport.core.errors import ChannelUnavailable, InvalidInput, RapportError
from rapport.core.event import Event, StoredEvent
from rapport.core.signature import without_raw_signature
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import Tasks
from rapport.kernel.telemetry import get_logger

_log = get_logger(__name__)

_HELD_BACK_SECONDS = 5.0
"""When to ask again where a rule is missing: somebody has to do something about it first."""


class InterceptedChannels(Channels, KeepsRecords, Protocol):
    """Channels with records."""


class Interceptors:
    """The chain of every channel; all calls belong to one event loop."""

    def __init__(
        self,
        channels: InterceptedChannels,
        clock: Clock,
        *,
        engage: Callable[[Interceptors | None], None],
    ) -> None:
        """`engage` is told whether there is anything to ask: None while there is not."""
        self._channels, self._clock, self._engage = channels, clock, engage
        self.workshop = Workshop(channels=channels, clock=clock)
        self.seal: Callable[[Event, Event], Event] = without_raw_signature
        """What is done with (what a chain made, the event it was made of)."""
        self._roster = Roster()
        self._followers = Followers(channels, clock, self._tell_off)
        self._tasks = Tasks(clock)
        self._noticed: set[str] = set()

    def listed(self, channel: str = "") -> list[Shown]:
        """The interceptors in their order; those that work on a channel when one is named."""
        chosen = self.chain(channel) if channel else self._roster.in_order()
        return [shown(standing) for standing in chosen]

    def add(
        self,
        channels: str,
        interceptor: Interceptor,
        *,
        at: At = "append",
        name: str = "",
        before: str = "",
    ) -> str:
        """Adds an interceptor by code: it works from the next event on, until the process ends.

        Returns its name. Raises DuplicateName, UnknownName (`before`), InvalidInput for a following
        one: its place must be durable, so it is declared.
        """
        if isinstance(interceptor, FollowingInterceptor):
            raise InvalidInput(
                "an interceptor that follows the log needs a durable place",
                code="interceptor.not_declared",
                hint="register its kind as a plug-in and use declare",
            )
        chosen = name or self._roster.free_name(type(interceptor).__name__.lower())
        declared = Declared(
            name=chosen,
            channels=channels,
            kind=type(interceptor).__name__,
            at=at,
            order=self._roster.order(before),
        )
        self._roster.check_new(declared)
        self._put(Standing(declared, interceptor, is_kept=False))
        return chosen

    async def declare(
        self,
        name: str,
        channels: str,
        kind: str,
        settings: Mapping[str, Any] | None = None,
        *,
        at: At = "append",
        before: str = "",
        keep: bool = True,
    ) -> Shown:
        """Adds an interceptor of a kind and, with `keep`, for good; durable when it returns.

        Raises DuplicateName, UnknownName (kind, before), InvalidInput (settings), Unsupported.
        """
        declared = Declared(
            name=name,
            channels=channels,
            kind=kind,
            at=at,
            settings=dict(settings or {}),
            order=self._roster.order(before),
        )
        self._roster.check_new(declared)
        standing = Standing(declared, self._make(declared), is_kept=keep)
        follows = isinstance(standing.interceptor, FollowingInterceptor)
        if follows and at != "append":
            raise InvalidInput(
                f"{kind} follows what is appended, not what is delivered",
                code="interceptor.bad_place",
            )
        with self._roster.alone(name):
            if follows:
                # Places before the declaration: a crash in between must not make it begin in the
                # past.
                await self._followers.take_places(declared)
            if keep:
                await self._channels.apply([put_declared(declared)])
            self._put(standing)
        if follows:
            self._followers.follow_all(standing)
        return shown(standing)

    async def remove(self, name: str) -> Shown:
        """Takes an interceptor out; a following one first finishes what was appended by now, for
        at most five seconds. Raises UnknownName, and ChannelUnavailable when the disk refuses: then
        it works on, and does not come back unasked with the next start.
        """
        standing = self._roster.known(name)
        with self._roster.alone(name):
            await self._followers.finish(name)
            self._roster.drop(name)
            self._changed()
            try:
                await self._channels.apply(
                    await self._channels.look(
                        lambda records: forget_changes(records, name, self._channels.names())
                    )
                )
            except RapportError:
                self._put(standing)
                self._followers.follow_all(standing)
                raise
        return shown(standing)

    async def switch_on(self, name: str) -> Shown:
        """Lets an interceptor work again that was switched off; a following one goes on with the
        event at which it stopped. Raises UnknownName, and what `declare` raises for one that could
        not be made at the start and still cannot.
        """
        standing = self._roster.known(name)
        if isinstance(standing.interceptor, Missing):
            standing.interceptor = self._make(standing.declared)
        if standing.is_off:
            standing.is_off, standing.faults_in_a_row = False, 0
            await self._followers.begin_again(standing)
        return shown(standing)

    async def start(self, site: Sequence[Declared] = ()) -> None:
        """Makes those of the site and the kept ones again, and lets the following ones go on where
        they stood. Raises InvalidInput when one of the site's is wrong.
        """
        for declared in site:
            self._roster.check_new(declared)
            standing = Standing(declared, self._make(declared), is_kept=False)
            if isinstance(standing.interceptor, FollowingInterceptor):
                await self._followers.take_places(declared)
            self._put(standing)
        for declared in await self._channels.look(load_declared):
            await self._make_again(declared)
        await self._forget_orphans()
        self._followers.start()
        for standing in self._roster.in_order():
            self._followers.follow_all(standing)

    async def _make_again(self, declared: Declared) -> None:
        if declared.name in self._roster:
            return
        try:
            self._put(Standing(declared, self._make(declared), is_kept=True))
        except RapportError as error:
            # Its place is kept: once what it needs is there again, nothing was lost. It is shown
            # and can be removed, or retention would wait for its place for ever.
            standing = Standing(
                declared, Missing(), is_kept=True, last_error=error.message, is_off=True
            )
            self._put(standing)
            _log.error(
                "nothing is delivered" if standing.holds_back else "interceptor left out",
                name=declared.name,
                channels=declared.channels,
                error=error.message,
            )

    async def _forget_orphans(self) -> None:
        known = {reader_of(name) for name in self._roster.names()}
        names = self._channels.names()
        changes = await self._channels.look(
            lambda records: orphans(records, names, READER_PREFIX, known)
        )
        await self._channels.apply(changes)

    async def stop(self) -> None:
        """Stops where they are; places are kept."""
        await self._followers.stop()
        await self._tasks.stop()

    # --- called by channels ---

    def chain(self, channel: str) -> tuple[Standing, ...]:
        """The interceptors that work on a channel, in order; looked up once."""
        return self._roster.chain(channel)

    async def append(
        self,
        channel: Channel,
        events: Sequence[Event],
        plain: Callable[[Sequence[Event]], Awaitable[Appended]],
    ) -> Appended:
        """An append through the chain; `plain` is the append itself. What was dropped has position
        0 and is recorded.
        """
        self._notice(channel.name)
        chain = [one for one in self.chain(channel.name) if one.declared.at == "append"]
        passed = pass_appended(chain, channel.name, events)
        self._tell_all_off(passed.switched_off)
        if passed.drops:
            await self._record(channel.name, passed.drops)
        flat = [
            self.seal(made, event) if is_changed(made, event) else made
            for event, group in zip(events, passed.groups, strict=True)
            for made in group
        ]
        return _as_given(passed.groups, await plain(flat))

    def intercepts_delivery(self, channel: str) -> bool:
        """Whether an interceptor works on what readers of a channel are given."""
        return any(self._delivering(channel))

    def may_hide(self, channel: str) -> bool:
        """Whether one of them may leave out or change something: all may that do not say that they
        only look.
        """
        return any(
            not getattr(one.interceptor, "only_looks", False) for one in self._delivering(channel)
        )

    def deliver(
        self, channel: str, reader: str, events: Sequence[StoredEvent]
    ) -> list[StoredEvent]:
        """What a reader is given of events; raises ChannelUnavailable while a rule that may hide
        some of them cannot be made.
        """
        chain = self._delivering(channel)
        if not chain or not events or reader.startswith(READER_PREFIX):
            return list(events)
        for standing in chain:
            if standing.holds_back:
                raise held_back(channel, standing)
        given, switched_off = pass_delivered(chain, channel, reader, events)
        self._tell_all_off(switched_off)
        return given

    # --- the chain ---

    def _delivering(self, channel: str) -> list[Standing]:
        return [
            one
            for one in self.chain(channel)
            if one.declared.at == "delivery" and (not one.is_off or one.holds_back)
        ]

    def _make(self, declared: Declared) -> Interceptor:
        return make_interceptor(declared.kind, declared.settings, self.workshop)

    def _put(self, standing: Standing) -> None:
        self._roster.put(standing)
        self._changed()

    def _changed(self) -> None:
        self._noticed.clear()
        self._engage(self if len(self._roster) else None)

    def _notice(self, channel: str) -> None:
        """A channel that events come into is followed, also when it is new."""
        if channel not in self._noticed:
            self._noticed.add(channel)
            for standing in self.chain(channel):
                self._followers.follow(standing, channel)

    # --- telling ---

    async def _record(self, channel: str, drops: Sequence[Drop]) -> None:
        now_ms = self._clock.now_ms()
        records = [drop_record(channel, drop.interceptor, drop.event, now_ms) for drop in drops]
        await self._channels.channel(INTERCEPTED).append(records)

    def _tell_all_off(self, switched_off: Sequence[Standing]) -> None:
        for standing in switched_off:
            self._tell_off(standing)

    def _tell_off(self, standing: Standing) -> None:
        _log.error(
            "interceptor switched off",
            name=standing.declared.name,
            faults=standing.faults,
            error=standing.last_error,
        )
        event = off_record(standing, self._clock.now_ms())

        async def record() -> None:
            await self._channels.channel(INTERCEPTED).append([event])

        self._tasks.start(f"intercept.off.{standing.declared.name}", record)


def held_back(channel: str, standing: Standing) -> ChannelUnavailable:
    """Why readers of a channel get nothing, and what to do about it."""
    name = standing.declared.name
    return ChannelUnavailable(
        f"nothing of {channel!r} is delivered: its rule {name!r} cannot be made "
        f"({standing.last_error})",
        retry_after_seconds=_HELD_BACK_SECONDS,
        code="interceptor.missing",
        hint=f"give it what it lacks, then: rapport channel intercept on {name}; or do without "
        f"it: rapport channel intercept remove {name}",
    )


def _as_given(groups: Sequence[tuple[Event, ...]], appended: Appended) -> Appended:
    """Positions for the events as they came: that of the first one each was made into."""
    positions, at = [], 0
    for group in groups:
        positions.append(appended.positions[at] if group else 0)
        at += len(group)
    return Appended(tuple(positions), appended.duplicates)
