"""All interceptors of a node: added, removed and listed at run time. [CH-10]

Interceptors added by code live as long as the process. Declared ones are stored in the records and
made again at the next start; following ones begin with the event after they were added (one task
per interceptor and channel, `InterceptorFeed`), and when removed finish what was appended by then.
`delivered_at_rest` applies stored delivery interceptors for readers of the log without a node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from rapport.channel.access.signatures import is_changed
from rapport.channel.channel import AppendResult, Channel, Channels
from rapport.channel.consumers import RetryingConsumer
from rapport.channel.dead_letters import AdminChannels
from rapport.channel.interceptors.builtin import InterceptorContext, make_interceptor
from rapport.channel.interceptors.chain import (
    INTERCEPTED,
    ActiveInterceptor,
    At,
    DroppedEvent,
    FollowingInterceptor,
    Interceptor,
    InterceptorRoster,
    InterceptorSpec,
    InterceptorStatus,
    MissingInterceptor,
    drop_record,
    forget_changes,
    interceptor_status,
    load_specs,
    note_fault,
    off_record,
    orphans,
    pass_appended,
    pass_delivered,
    put_spec,
    reader_of,
)
from rapport.channel.validation import READER_PREFIX
from rapport.core.errors import (
    ChannelUnavailable,
    InvalidInput,
    RapportError,
    StoreUnavailable,
    Unsupported,
)
from rapport.core.event import Event, StoredEvent
from rapport.core.signature import without_raw_signature
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import Tasks, first_of
from rapport.kernel.telemetry import get_logger

_BATCH = 500
_log = get_logger(__name__)
_FINISH_MS = 5_000
_HELD_BACK_SECONDS = 5.0
"""Retry hint where an interceptor is missing: a person has to act first."""


class InterceptorFeed:
    """Feeds an interceptor. An event that fails three times becomes a dead letter, and the next
    ones follow; an unavailable target is waited for.
    """

    def __init__(
        self,
        channels: Channels,
        channel: str,
        standing: ActiveInterceptor,
        clock: Clock,
        record_off: Callable[[ActiveInterceptor], None],
    ) -> None:
        self._channels, self._channel, self._clock = channels, channel, clock
        self._standing, self._record_off = standing, record_off
        self._finish = asyncio.Event()
        self._until: int | None = None

    def finish(self) -> None:
        """Makes `run` return once everything that is durable by now was followed."""
        if self._until is None:
            self._until = self._channels.channel(self._channel).last_position()
        self._finish.set()

    async def run(self) -> None:
        """Follows until `finish`, or until the interceptor is switched off."""
        name = self._standing.declared.name
        subscription = await self._channels.subscribe(self._channel, reader_of(name))
        consumer = RetryingConsumer(self._channels, subscription, self._handle, self._clock)
        source = self._channels.channel(self._channel)
        while not self._standing.is_off:
            if self._until is not None and subscription.position >= self._until:
                return
            if self._until is None:
                await first_of(source.wait_after(subscription.position), self._finish.wait())
            batch = await subscription.next_batch(limit=_BATCH, timeout_ms=0)
            until = self._until
            chosen = [one for one in batch if until is None or one.position <= until]
            if chosen:
                await self._handle_batch(consumer, chosen)
            elif until is not None:
                return

    async def _handle_batch(
        self, consumer: RetryingConsumer, chosen: Sequence[StoredEvent]
    ) -> None:
        """Handles a batch; when switched off in the middle, the rest waits at the cursor."""
        try:
            await consumer.handle(chosen)
        except ChannelUnavailable:
            if not self._standing.is_off:
                raise

    async def _handle(self, batch: Sequence[StoredEvent]) -> bytes | None:
        standing = self._standing
        assert isinstance(standing.interceptor, FollowingInterceptor)
        if standing.is_off:
            raise ChannelUnavailable("the interceptor is off", code="channel.closed")
        try:
            await standing.interceptor.follow(self._channel, batch)
        except (StoreUnavailable, ChannelUnavailable) as error:
            standing.last_error = error.message
            raise
        except Exception as error:
            if len(batch) == 1:  # a larger one is halved until the fault has a name
                note_fault(standing, error)
                if standing.is_off:
                    self._record_off(standing)
            raise
        standing.seen += len(batch)
        standing.faults_in_a_row = 0
        return None


class InterceptorFeeds:
    """Starts and ends following interceptors; cursors last until the interceptor is removed."""

    def __init__(
        self, channels: Channels, clock: Clock, record_off: Callable[[ActiveInterceptor], None]
    ) -> None:
        self._channels, self._clock, self._record_off = channels, clock, record_off
        self._following: dict[tuple[str, str], InterceptorFeed] = {}
        self._tasks = Tasks(clock)
        self._started = False

    async def set_cursors(self, declared: InterceptorSpec) -> None:
        """Sets cursors behind the last event of every channel; durable when it returns."""
        for name in self._matching(declared):
            await self._channels.subscribe(name, reader_of(declared.name), from_start=False)

    def start(self) -> None:
        """From now on `follow` starts tasks; before, none runs."""
        self._started = True

    async def stop(self) -> None:
        """Ends where they are."""
        self._started = False
        self._following.clear()
        await self._tasks.stop()

    def follow_all(self, standing: ActiveInterceptor) -> None:
        for name in self._matching(standing.declared):
            self.follow(standing, name)

    def follow(self, standing: ActiveInterceptor, channel: str) -> None:
        """Starts following; a channel created later is followed from its start."""
        name = standing.declared.name
        follows = isinstance(standing.interceptor, FollowingInterceptor)
        if not self._started or not follows or (name, channel) in self._following:
            return
        following = InterceptorFeed(
            self._channels, channel, standing, self._clock, self._record_off
        )
        self._following[name, channel] = following
        self._tasks.start(_task(name, channel), following.run)

    async def finish(self, name: str) -> None:
        """Ends an interceptor once it has handled what was appended by now; waits at most five
        seconds.
        """
        channels = [channel for one, channel in self._following if one == name]
        for channel in channels:
            self._following[name, channel].finish()
        for channel in channels:
            task = _task(name, channel)
            await first_of(self._tasks.ended(task), self._clock.sleep(_FINISH_MS))
            await self._tasks.stop(task)
            del self._following[name, channel]

    async def begin_again(self, standing: ActiveInterceptor) -> None:
        """Continues after it was switched off."""
        name = standing.declared.name
        for key in [key for key in self._following if key[0] == name]:
            await self._tasks.stop(_task(*key))
            del self._following[key]
        self.follow_all(standing)

    def _matching(self, declared: InterceptorSpec) -> list[str]:
        return [
            name
            for name in self._channels.names()
            if name != INTERCEPTED and fnmatchcase(name, declared.channels)
        ]


def _task(name: str, channel: str) -> str:
    return f"intercept.{name}.{channel}"


class Interceptors:
    """The chain of every channel; all calls belong to one event loop."""

    def __init__(
        self,
        channels: AdminChannels,
        clock: Clock,
        *,
        engage: Callable[[Interceptors | None], None],
    ) -> None:
        """`engage` receives this object while there are interceptors, else None."""
        self._channels, self._clock, self._engage = channels, clock, engage
        self.context = InterceptorContext(channels=channels, clock=clock)
        self.seal: Callable[[Event, Event], Event] = without_raw_signature
        """Signs (what a chain made, the event it was made of)."""
        self._roster = InterceptorRoster()
        self._followers = InterceptorFeeds(channels, clock, self._record_off)
        self._tasks = Tasks(clock)
        self._noticed: set[str] = set()

    def listed(self, channel: str = "") -> list[InterceptorStatus]:
        """The interceptors in their order; those that work on a channel when one is named."""
        chosen = self.chain(channel) if channel else self._roster.in_order()
        return [interceptor_status(standing) for standing in chosen]

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
        one: its cursor must be durable, so it has to be declared.
        """
        if isinstance(interceptor, FollowingInterceptor):
            raise InvalidInput(
                "an interceptor that follows the log needs a durable cursor",
                code="interceptor.not_declared",
                hint="register its kind as a plug-in and use declare",
            )
        chosen = name or self._roster.free_name(type(interceptor).__name__.lower())
        declared = InterceptorSpec(
            name=chosen,
            channels=channels,
            kind=type(interceptor).__name__,
            at=at,
            order=self._roster.order(before),
        )
        self._roster.check_new(declared)
        self._put(ActiveInterceptor(declared, interceptor, is_kept=False))
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
    ) -> InterceptorStatus:
        """Adds an interceptor of a kind and, with `keep`, for good; durable when it returns.

        Raises DuplicateName, UnknownName (kind, before), InvalidInput (settings), Unsupported.
        """
        declared = InterceptorSpec(
            name=name,
            channels=channels,
            kind=kind,
            at=at,
            settings=dict(settings or {}),
            order=self._roster.order(before),
        )
        self._roster.check_new(declared)
        standing = ActiveInterceptor(declared, self._make(declared), is_kept=keep)
        follows = isinstance(standing.interceptor, FollowingInterceptor)
        if follows and at != "append":
            raise InvalidInput(
                f"{kind} follows appended events, not delivered ones",
                code="interceptor.bad_place",
            )
        with self._roster.alone(name):
            if follows:
                # Cursors before the declaration: a crash in between must not make it begin in the
                # past.
                await self._followers.set_cursors(declared)
            if keep:
                await self._channels.apply([put_spec(declared)])
            self._put(standing)
        if follows:
            self._followers.follow_all(standing)
        return interceptor_status(standing)

    async def remove(self, name: str) -> InterceptorStatus:
        """Removes an interceptor; a following one first finishes what was appended by now, for at
        most five seconds. Raises UnknownName, and ChannelUnavailable when the store fails: then it
        keeps working, and is not restored by the next start.
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
        return interceptor_status(standing)

    async def switch_on(self, name: str) -> InterceptorStatus:
        """Switches an interceptor on again; a following one continues with the event at which it
        stopped. Raises UnknownName, and as `declare` for one that could not be made at the start
        and still cannot.
        """
        standing = self._roster.known(name)
        if isinstance(standing.interceptor, MissingInterceptor):
            standing.interceptor = self._make(standing.declared)
        if standing.is_off:
            standing.is_off, standing.faults_in_a_row = False, 0
            await self._followers.begin_again(standing)
        return interceptor_status(standing)

    async def start(self, site: Sequence[InterceptorSpec] = ()) -> None:
        """Makes those of the site and the stored ones again, and resumes the following ones. Raises
        InvalidInput when one of the site's is wrong.
        """
        for declared in site:
            self._roster.check_new(declared)
            standing = ActiveInterceptor(declared, self._make(declared), is_kept=False)
            if isinstance(standing.interceptor, FollowingInterceptor):
                await self._followers.set_cursors(declared)
            self._put(standing)
        for declared in await self._channels.look(load_specs):
            await self._make_again(declared)
        await self._forget_orphans()
        self._followers.start()
        for standing in self._roster.in_order():
            self._followers.follow_all(standing)

    async def _make_again(self, declared: InterceptorSpec) -> None:
        if declared.name in self._roster:
            return
        try:
            self._put(ActiveInterceptor(declared, self._make(declared), is_kept=True))
        except RapportError as error:
            # Its cursor is kept: once its requirement is there again, nothing was lost. It is shown
            # and can be removed, or retention would wait for its cursor for ever.
            standing = ActiveInterceptor(
                declared, MissingInterceptor(), is_kept=True, last_error=error.message, is_off=True
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
        await self._followers.stop()
        await self._tasks.stop()

    # --- called by channels ---

    def chain(self, channel: str) -> tuple[ActiveInterceptor, ...]:
        """The interceptors that work on a channel, in order; looked up once."""
        return self._roster.chain(channel)

    async def append(
        self,
        channel: Channel,
        events: Sequence[Event],
        plain: Callable[[Sequence[Event]], Awaitable[AppendResult]],
    ) -> AppendResult:
        """An append through the chain, then by `plain`. A dropped event has position 0."""
        self._notice(channel.name)
        chain = [one for one in self.chain(channel.name) if one.declared.at == "append"]
        passed = pass_appended(chain, channel.name, events)
        self._record_all_off(passed.switched_off)
        if passed.drops:
            await self._record(channel.name, passed.drops)
        flat = [
            self.seal(made, event) if is_changed(made, event) else made
            for event, group in zip(events, passed.groups, strict=True)
            for made in group
        ]
        return _original_positions(passed.groups, await plain(flat))

    def intercepts_delivery(self, channel: str) -> bool:
        return any(self._delivering(channel))

    def may_hide(self, channel: str) -> bool:
        """Whether one may hide or change events: all that do not declare themselves observers."""
        return any(
            not getattr(one.interceptor, "only_looks", False) for one in self._delivering(channel)
        )

    def deliver(
        self, channel: str, reader: str, events: Sequence[StoredEvent]
    ) -> list[StoredEvent]:
        """The events for a reader; raises ChannelUnavailable while an interceptor that may hide
        some of them cannot be made.
        """
        chain = self._delivering(channel)
        if not chain or not events or reader.startswith(READER_PREFIX):
            return list(events)
        for standing in chain:
            if standing.holds_back:
                raise missing_interceptor_error(channel, standing)
        given, switched_off = pass_delivered(chain, channel, reader, events)
        self._record_all_off(switched_off)
        return given

    # --- the chain ---

    def _delivering(self, channel: str) -> list[ActiveInterceptor]:
        return [
            one
            for one in self.chain(channel)
            if one.declared.at == "delivery" and (not one.is_off or one.holds_back)
        ]

    def _make(self, declared: InterceptorSpec) -> Interceptor:
        return make_interceptor(declared.kind, declared.settings, self.context)

    def _put(self, standing: ActiveInterceptor) -> None:
        self._roster.put(standing)
        self._changed()

    def _changed(self) -> None:
        self._noticed.clear()
        self._engage(self if len(self._roster) else None)

    def _notice(self, channel: str) -> None:
        """Starts following a channel that receives events, also a new one."""
        if channel not in self._noticed:
            self._noticed.add(channel)
            for standing in self.chain(channel):
                self._followers.follow(standing, channel)

    # --- records of what happened ---

    async def _record(self, channel: str, drops: Sequence[DroppedEvent]) -> None:
        now_ms = self._clock.now_ms()
        records = [drop_record(channel, drop.interceptor, drop.event, now_ms) for drop in drops]
        await self._channels.channel(INTERCEPTED).append(records)

    def _record_all_off(self, switched_off: Sequence[ActiveInterceptor]) -> None:
        for standing in switched_off:
            self._record_off(standing)

    def _record_off(self, standing: ActiveInterceptor) -> None:
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


def missing_interceptor_error(channel: str, standing: ActiveInterceptor) -> ChannelUnavailable:
    """The error for readers of a channel with a missing interceptor, with a hint."""
    name = standing.declared.name
    return ChannelUnavailable(
        f"nothing of {channel!r} is delivered: its rule {name!r} cannot be made "
        f"({standing.last_error})",
        retry_after_seconds=_HELD_BACK_SECONDS,
        code="interceptor.missing",
        hint=f"give it what it lacks, then: rapport channel intercept on {name}; or do without "
        f"it: rapport channel intercept remove {name}",
    )


def _original_positions(
    groups: Sequence[tuple[Event, ...]], appended: AppendResult
) -> AppendResult:
    """Positions for the original events: that of the first one each was made into."""
    positions, at = [], 0
    for group in groups:
        positions.append(appended.positions[at] if group else 0)
        at += len(group)
    return AppendResult(tuple(positions), appended.duplicates)


def delivered_at_rest(
    kept: Sequence[InterceptorSpec],
    channels: Channels,
    clock: Clock,
    channel: str,
    reader: str,
    events: Sequence[StoredEvent],
) -> list[StoredEvent]:
    """The events of a channel for a reader; raises Unsupported for an interceptor that only the
    running node can make, rather than show hidden events.
    """
    context = InterceptorContext(channels=channels, clock=clock)
    chain = [
        ActiveInterceptor(one, _make_interceptors(one, context), is_kept=True)
        for one in kept
        if one.at == "delivery" and channel != INTERCEPTED and fnmatchcase(channel, one.channels)
    ]
    given, _switched_off = pass_delivered(chain, channel, reader, events)
    return given


def _make_interceptors(declared: InterceptorSpec, context: InterceptorContext) -> Interceptor:
    try:
        return make_interceptor(declared.kind, declared.settings, context)
    except RapportError as error:
        raise Unsupported(
            f"reading past the interceptor {declared.name!r}",
            "this program",
            hint=f"use the running node, GET /channels/NAME/events ({error.message})",
        ) from error
