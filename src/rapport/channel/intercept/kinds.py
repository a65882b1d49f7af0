"""Kinds of interceptors by name: `count`, `filter`, `drop`, `mediate`, `forward`, `trigger`, and
what plug-ins add. [CH-10]

A kind is a function from settings and a `Workshop` to an interceptor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rapport.channel.channel import Channels
from rapport.channel.intercept.forwarding import Forward, HttpTarget, Trigger
from rapport.channel.intercept.interceptor import Interceptor
from rapport.channel.push.addresses import check_address
from rapport.channel.query.compiler import Matches
from rapport.channel.query.kinds import sql_query
from rapport.core.errors import InvalidInput, RapportError, Unsupported
from rapport.core.event import Event, StoredEvent
from rapport.kernel.clock import Clock
from rapport.kernel.plugins import Plugins

Mediate = Callable[[Event], Sequence[Event]]
"""An event in another interpretation; none when it cannot be given one."""


class Workshop(msgspec.Struct, frozen=True, kw_only=True):
    """What kinds may use."""

    channels: Channels
    clock: Clock
    addresses: tuple[str, ...] = ()
    """Where `forward` may send by HTTP; see push/addresses.py."""
    mediator: Callable[[str], Mediate] | None = None
    """The interpretation of a name; raises UnknownName."""


MakeInterceptor = Callable[[Mapping[str, Any], Workshop], Interceptor]


class Count:
    """Counts events by type; changes nothing."""

    only_looks = True
    """See Interceptors.may_hide."""

    def __init__(self) -> None:
        self.by_type: Counter[str] = Counter()

    def on_append(self, _channel: str, event: Event) -> Sequence[Event]:
        """See AppendInterceptor."""
        self.by_type[event.type] += 1
        return (event,)

    def on_delivery(
        self, _channel: str, _reader: str, stored: StoredEvent
    ) -> Sequence[StoredEvent]:
        """See DeliveryInterceptor."""
        self.by_type[stored.event.type] += 1
        return (stored,)


class Keep:
    """Lets through what a condition matches, or what it does not."""

    def __init__(self, matches: Matches, clock: Clock, *, wanted: bool) -> None:
        self._matches, self._clock, self._wanted = matches, clock, wanted

    def on_append(self, _channel: str, event: Event) -> Sequence[Event]:
        """See AppendInterceptor; the event has position 0 and is received now."""
        seen = StoredEvent(0, self._clock.now_ms(), event)
        return (event,) if bool(self._matches(seen)) == self._wanted else ()

    def on_delivery(
        self, _channel: str, _reader: str, stored: StoredEvent
    ) -> Sequence[StoredEvent]:
        """See DeliveryInterceptor."""
        return (stored,) if bool(self._matches(stored)) == self._wanted else ()


class Mediated:
    """Gives events another interpretation."""

    def __init__(self, mediate: Mediate) -> None:
        self._mediate = mediate

    def on_append(self, _channel: str, event: Event) -> Sequence[Event]:
        """See AppendInterceptor."""
        return self._mediate(event)

    def on_delivery(
        self, _channel: str, _reader: str, stored: StoredEvent
    ) -> Sequence[StoredEvent]:
        """See DeliveryInterceptor; one for one, since a position names one event."""
        made = self._mediate(stored.event)
        return [StoredEvent(stored.position, stored.received, event) for event in made[:1]]


def make_count(settings: Mapping[str, Any], _workshop: Workshop) -> Interceptor:
    """`count`: no settings."""
    _check_settings("count", settings, ())
    return Count()


def make_filter(settings: Mapping[str, Any], workshop: Workshop) -> Interceptor:
    """`filter`: only what `where` matches goes on."""
    _check_settings("filter", settings, ("where",))
    return Keep(_condition("filter", settings), workshop.clock, wanted=True)


def make_drop(settings: Mapping[str, Any], workshop: Workshop) -> Interceptor:
    """`drop`: what `where` matches does not go on."""
    _check_settings("drop", settings, ("where",))
    return Keep(_condition("drop", settings), workshop.clock, wanted=False)


def make_mediate(settings: Mapping[str, Any], workshop: Workshop) -> Interceptor:
    """`mediate`: events in the interpretation named `interpretation`."""
    _check_settings("mediate", settings, ("interpretation",))
    if workshop.mediator is None:
        raise Unsupported("mediating in a chain", hint="these channels know no interpretations")
    return Mediated(workshop.mediator(_text("mediate", settings, "interpretation")))


def make_forward(settings: Mapping[str, Any], workshop: Workshop) -> Interceptor:
    """`forward`: a copy of what `where` matches to the channel `to`, or by HTTP to `url`."""
    _check_settings("forward", settings, ("where", "to", "url"))
    matches = _condition("forward", settings) if "where" in settings else None
    if ("to" in settings) == ("url" in settings):
        raise InvalidInput(
            "forward needs a channel or an address",
            code="interceptor.bad_settings",
            hint='say to="CHANNEL" or url="https://..."',
        )
    if "to" in settings:
        target = workshop.channels.channel(_text("forward", settings, "to"))
        return Forward(matches, target)
    url = _text("forward", settings, "url")
    check_address(url, workshop.addresses)
    return Forward(matches, HttpTarget(url))


def make_trigger(settings: Mapping[str, Any], workshop: Workshop) -> Interceptor:
    """`trigger`: for what `where` matches an event of `type` in the channel `to`."""
    _check_settings("trigger", settings, ("where", "to", "type"))
    return Trigger(
        _condition("trigger", settings),
        workshop.channels.channel(_text("trigger", settings, "to")),
        _text("trigger", settings, "type"),
    )


KINDS = Plugins()
"""Built-in kinds and installed entry points of the group `rapport.interceptors`."""
for _name, _make in {
    "count": make_count,
    "filter": make_filter,
    "drop": make_drop,
    "mediate": make_mediate,
    "forward": make_forward,
    "trigger": make_trigger,
}.items():
    KINDS.add("interceptors", _name, _make)


def make_interceptor(kind: str, settings: Mapping[str, Any], workshop: Workshop) -> Interceptor:
    """An interceptor of a kind; raises UnknownName (kind), InvalidInput (settings, or a plug-in
    that cannot be loaded or fails), Unsupported.
    """
    try:
        make: MakeInterceptor = KINDS.get("interceptors", kind)
        return make(settings, workshop)
    except RapportError:
        raise
    except Exception as error:  # a plug-in's fault is told like any other
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
