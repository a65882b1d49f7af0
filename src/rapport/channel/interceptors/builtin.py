"""Built-in kinds of interceptors: `count`, `filter`, `drop`, `mediate`, `forward`, `trigger`;
plug-ins add others. [CH-10]

A kind is a function from settings and an `InterceptorContext` to an interceptor. A site declares
interceptors as `interceptors = ["count", "drop: ..."]`; the text behind the colon is the kind's
main setting: a condition, a channel, an interpretation.
"""

from __future__ import annotations

import http.client
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from rapport.channel.channel import Channel, Channels
from rapport.channel.config import ChannelRules, ChannelsConfig
from rapport.channel.interceptors.chain import Interceptor, InterceptorSpec
from rapport.channel.push import check_address
from rapport.channel.query.compiler import Matches
from rapport.channel.query.query_kinds import sql_query
from rapport.core.codec import to_cloudevent
from rapport.core.errors import (
    ChannelUnavailable,
    DuplicateName,
    InvalidInput,
    Problem,
    RapportError,
    Unsupported,
)
from rapport.core.event import CAUSE, Event, StoredEvent, cause_text, content_id, make_event
from rapport.kernel.clock import Clock
from rapport.kernel.plugins import Plugins
from rapport.kernel.tasks import run_in_thread
from rapport.kernel.toml import TomlFile

_TIMEOUT_SECONDS = 10
_SOURCE = "rapport.channel"
_BATCH_TYPE = "application/cloudevents-batch+json"
Mediate = Callable[[Event], Sequence[Event]]
"""Translates an event into another interpretation; None when that is impossible."""
KINDS = Plugins()
"""Built-in kinds and installed entry points of the group `rapport.interceptors`."""
_MAIN_SETTING = {
    "filter": "where",
    "drop": "where",
    "forward": "to",
    "mediate": "interpretation",
}
_NAME_DIGITS = 12


class ForwardTarget(Protocol):
    """Where copies go; taking an event twice is taking it once."""

    async def append(self, events: Sequence[Event]) -> object:
        """Returns when the events are safe there; raises ChannelUnavailable to be retried."""


class ForwardInterceptor:
    """A copy of every event that matches, under its own source and id: a channel drops the second
    one, so nothing is doubled.
    """

    def __init__(self, matches: Matches | None, target: ForwardTarget) -> None:
        self._matches, self._target = matches, target

    async def follow(self, _channel: str, events: Sequence[StoredEvent]) -> None:
        matches = self._matches
        chosen = [one.event for one in events if matches is None or matches(one)]
        if chosen:
            await self._target.append(chosen)


class TriggerInterceptor:
    """An event of its own type in another channel for every event that matches."""

    def __init__(self, matches: Matches, target: Channel, type: str) -> None:
        self._matches, self._target, self._type = matches, target, type

    async def follow(self, channel: str, events: Sequence[StoredEvent]) -> None:
        made = [self._made(channel, one) for one in events if self._matches(one)]
        if made:
            await self._target.append(made)

    def _made(self, channel: str, stored: StoredEvent) -> Event:
        cause = stored.event
        return make_event(
            source=_SOURCE,
            id=content_id("trigger", self._type, channel, cause.source, cause.id),
            type=self._type,
            subject=cause.subject,
            time=cause.time,
            data={"channel": channel, "position": stored.position, "event": cause.id},
            headers={CAUSE: cause_text(cause.id)},
        )


class HttpForwardTarget:
    """An address that takes CloudEvents in batches. Redirects are not followed: only this address
    was allowed. The receiver deduplicates by source and id.
    """

    def __init__(self, url: str) -> None:
        self._url, self._parts = url, urlsplit(url)

    async def append(self, events: Sequence[Event]) -> object:
        body = msgspec.json.encode([to_cloudevent(event) for event in events])
        status = await run_in_thread(partial(self._post, body), name="forwarding")
        if not 200 <= status < 300:
            raise self._refused(f"it answered {status}")
        return status

    def _post(self, body: bytes) -> int:
        parts = self._parts
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_SECONDS)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request("POST", path, body, {"Content-Type": _BATCH_TYPE})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise self._refused(str(error) or type(error).__name__) from None
        finally:
            connection.close()

    def _refused(self, why: str) -> ChannelUnavailable:
        return ChannelUnavailable(
            f"cannot forward to {self._url}: {why}",
            code="interceptor.not_forwarded",
            hint="it is tried again until it is taken or the interceptor is removed",
            retry_after_seconds=5.0,
        )


class InterceptorContext(msgspec.Struct, frozen=True, kw_only=True):
    channels: Channels
    clock: Clock
    addresses: tuple[str, ...] = ()
    """Where `forward` may send by HTTP; see push/addresses.py."""
    mediator: Callable[[str], Mediate] | None = None
    """The interpretation of a name; raises UnknownName."""


MakeInterceptor = Callable[[Mapping[str, Any], InterceptorContext], Interceptor]


class CountInterceptor:
    """Counts events by type; changes nothing."""

    only_looks = True
    """See Interceptors.may_hide."""

    def __init__(self) -> None:
        self.by_type: Counter[str] = Counter()

    def on_append(self, _channel: str, event: Event) -> Sequence[Event]:
        self.by_type[event.type] += 1
        return (event,)

    def on_delivery(
        self, _channel: str, _reader: str, stored: StoredEvent
    ) -> Sequence[StoredEvent]:
        self.by_type[stored.event.type] += 1
        return (stored,)


class FilterInterceptor:
    """Passes events that match a condition, or those that do not."""

    def __init__(self, matches: Matches, clock: Clock, *, wanted: bool) -> None:
        self._matches, self._clock, self._wanted = matches, clock, wanted

    def on_append(self, _channel: str, event: Event) -> Sequence[Event]:
        """See AppendInterceptor; the event has position 0 and is received now."""
        seen = StoredEvent(0, self._clock.now_ms(), event)
        return (event,) if bool(self._matches(seen)) == self._wanted else ()

    def on_delivery(
        self, _channel: str, _reader: str, stored: StoredEvent
    ) -> Sequence[StoredEvent]:
        return (stored,) if bool(self._matches(stored)) == self._wanted else ()


class MediateInterceptor:
    """Translates events into another interpretation."""

    def __init__(self, mediate: Mediate) -> None:
        self._mediate = mediate

    def on_append(self, _channel: str, event: Event) -> Sequence[Event]:
        return self._mediate(event)

    def on_delivery(
        self, _channel: str, _reader: str, stored: StoredEvent
    ) -> Sequence[StoredEvent]:
        """See DeliveryInterceptor; one for one, since a position names one event."""
        made = self._mediate(stored.event)
        return [StoredEvent(stored.position, stored.received, event) for event in made[:1]]


def _make_mediate(settings: Mapping[str, Any], context: InterceptorContext) -> Interceptor:
    if context.mediator is None:
        raise Unsupported("mediating in a chain", hint="these channels know no interpretations")
    return MediateInterceptor(context.mediator(_text("mediate", settings, "interpretation")))


def _make_forward(settings: Mapping[str, Any], context: InterceptorContext) -> Interceptor:
    matches = _condition("forward", settings) if "where" in settings else None
    if ("to" in settings) == ("url" in settings):
        raise InvalidInput(
            "forward needs a channel or an address",
            code="interceptor.bad_settings",
            hint='set to="CHANNEL" or url="https://..."',
        )
    if "to" in settings:
        target = context.channels.channel(_text("forward", settings, "to"))
        return ForwardInterceptor(matches, target)
    url = _text("forward", settings, "url")
    check_address(url, context.addresses)
    return ForwardInterceptor(matches, HttpForwardTarget(url))


def _make_trigger(settings: Mapping[str, Any], context: InterceptorContext) -> Interceptor:
    target = context.channels.channel(_text("trigger", settings, "to"))
    type = _text("trigger", settings, "type")
    return TriggerInterceptor(_condition("trigger", settings), target, type)


def _make_filter(
    kind: str, settings: Mapping[str, Any], context: InterceptorContext
) -> Interceptor:
    return FilterInterceptor(_condition(kind, settings), context.clock, wanted=kind == "filter")


_BUILT_IN: dict[str, tuple[tuple[str, ...], MakeInterceptor]] = {
    "count": ((), lambda _settings, _context: CountInterceptor()),
    "filter": (("where",), partial(_make_filter, "filter")),
    "drop": (("where",), partial(_make_filter, "drop")),
    "mediate": (("interpretation",), _make_mediate),
    "forward": (("where", "to", "url"), _make_forward),
    "trigger": (("where", "to", "type"), _make_trigger),
}
"""By kind: the settings it knows, and how it is made."""


def _make(kind: str, settings: Mapping[str, Any], context: InterceptorContext) -> Interceptor:
    known, make = _BUILT_IN[kind]
    _check_settings(kind, settings, known)
    return make(settings, context)


for _kind in _BUILT_IN:
    KINDS.add("interceptors", _kind, partial(_make, _kind))


def make_interceptor(
    kind: str, settings: Mapping[str, Any], context: InterceptorContext
) -> Interceptor:
    """An interceptor of a kind; raises UnknownName (kind), InvalidInput (settings, or a plug-in
    that cannot be loaded or fails), Unsupported.
    """
    try:
        make: MakeInterceptor = KINDS.get("interceptors", kind)
        return make(settings, context)
    except RapportError:
        raise
    except Exception as error:  # a plug-in's fault is reported like any other
        raise InvalidInput(
            f"the interceptor {kind!r} cannot be made: {type(error).__name__}: {error}"[:500],
            code="interceptor.not_made",
            hint="it is a plug-in: see whether it is installed whole and takes these settings",
        ) from error


def _condition(kind: str, settings: Mapping[str, Any]) -> Matches:
    return sql_query(_text(kind, settings, "where")).matches


def _text(kind: str, settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key)
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{kind} needs the text {key!r}", code="interceptor.bad_settings")
    return value


def _check_settings(kind: str, settings: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise InvalidInput(
            f"{kind} knows no setting {unknown[0]!r}",
            code="interceptor.bad_settings",
            hint=f"it has {', '.join(known)}" if known else "it has none",
        )


def site_interceptors(declared: ChannelsConfig) -> list[InterceptorSpec]:
    """All interceptors of a site, in order; raises UnknownName for an unknown kind, Unsupported for
    one that needs more than one setting. Names depend on channels and text only: a following one
    resumes at its cursor after a restart.
    """
    found: list[InterceptorSpec] = []
    for rule in (declared.common, *declared.rules):
        for text in rule.interceptors or ():
            found.append(_spec(rule.pattern, text, float(len(found)) - 1_000.0))
    return found


def check_interceptors(
    declared: ChannelsConfig, file: TomlFile, context: InterceptorContext
) -> list[Problem]:
    """The faults that would keep the site's interceptors from starting, each at its key. Each is
    made once, in `context`, and not used.
    """
    problems: list[Problem] = []
    for rule in (declared.common, *declared.rules):
        path = ("channels",) if rule is declared.common else ("channels", rule.pattern)
        for number, text in enumerate(rule.interceptors or ()):
            try:
                _check(rule, number, text, context)
            except RapportError as error:
                (found, *_more) = error.problems_found()
                problems.append(
                    file.problem(
                        (*path, "interceptors"),
                        error.code,
                        f"the interceptor {text[:100]!r}: {found.message}",
                        hint=found.hint or error.hint or "see docs/concepts/channel-care.md",
                    )
                )
    return problems


def _check(rule: ChannelRules, number: int, text: str, context: InterceptorContext) -> None:
    one = _spec(rule.pattern, text, 0.0)
    make_interceptor(one.kind, one.settings, context)
    if text in (rule.interceptors or ())[:number]:
        raise DuplicateName(
            "it stands there twice", code="interceptor.duplicate", hint="once is enough"
        )


def _spec(pattern: str, text: str, order: float) -> InterceptorSpec:
    kind, _colon, setting = (part.strip() for part in text.partition(":"))
    KINDS.get("interceptors", kind)  # a misspelt one is not one with too many settings
    if setting and kind not in _MAIN_SETTING:
        raise Unsupported(
            f"a setting of {kind!r} in a site file",
            hint="add it with: rapport channel intercept add",
        )
    return InterceptorSpec(
        name=f"site.{content_id(pattern, text)[:_NAME_DIGITS]}",
        channels=pattern,
        kind=kind,
        settings={_MAIN_SETTING[kind]: setting} if setting else {},
        order=order,
    )
