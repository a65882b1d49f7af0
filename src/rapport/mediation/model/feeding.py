"""What conversions learn from events: moving origins, exchange rates, functions of the site. [ME-4]

A state and an event give the next state; what cannot be used leaves it as it was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from rapport.mediation.model.conversions import Chain, Conversion, Stateful
from rapport.mediation.model.finding import ContextLookup
from rapport.mediation.model.memory import Functions
from rapport.mediation.model.money import ChangeCurrency, RateEvents
from rapport.mediation.model.places import MovingOrigin, ToAbsolute, ToRelative
from rapport.mediation.model.reading_texts import whole_number
from rapport.mediation.model.rejecting import finite, number, text
from rapport.mediation.rejection import Rejected
from rapport.units.quantities import converter

MOST_ORIGINS = 100_000
"""So many moving things are known; then the one heard of least recently is forgotten."""
MOST_RATES = 1_000
"""So many rates of one currency are known; then the oldest is forgotten."""


def fed_by(conversion: Conversion) -> Iterator[tuple[str, Conversion]]:
    """The types of events that a conversion, or a step of its chain, learns from."""
    how = conversion.how
    if isinstance(how, Chain):
        for step in how.steps:
            yield from fed_by(step)
    elif isinstance(how, Stateful) and how.feed:
        yield how.feed, conversion
    elif isinstance(how, (ToAbsolute, ToRelative)) and isinstance(how.origin, MovingOrigin):
        yield how.origin.feed, conversion
    elif isinstance(how, ChangeCurrency) and isinstance(how.rates, RateEvents):
        yield how.rates.feed, conversion


def remembers(conversion: Conversion) -> bool:
    """It gives what depends on earlier events, so its events must be taken in order."""
    how = conversion.how
    if isinstance(how, Chain):
        return any(remembers(step) for step in how.steps)
    return isinstance(how, Stateful) or any(fed_by(conversion))


def knows_only_now(conversion: Conversion) -> bool:
    """What it gives for an event depends on when it is asked: an earlier answer cannot be had
    again. Rates of currencies are known by their times, and can.
    """
    how = conversion.how
    if isinstance(how, Chain):
        return any(knows_only_now(step) for step in how.steps)
    if isinstance(how, (ToAbsolute, ToRelative)):
        return isinstance(how.origin, MovingOrigin)
    return isinstance(how, (Stateful, ContextLookup))


def next_state(
    conversion: Conversion, state: Any, event: Any, functions: Functions
) -> tuple[Any] | None:
    """The state after an event; None: it stays. Raises Rejected."""
    how = conversion.how
    if isinstance(how, Stateful):
        return (_updated(conversion.name, how, state, event, functions),)
    if isinstance(how, (ToAbsolute, ToRelative)) and isinstance(how.origin, MovingOrigin):
        return _moved(conversion.name, how.origin, state, event)
    if isinstance(how, ChangeCurrency) and isinstance(how.rates, RateEvents):
        return _rated(conversion.name, how.rates, state, event)
    return None


def _updated(name: str, how: Stateful, state: Any, event: Any, functions: Functions) -> Any:
    update = functions.get(how.update)
    if update is None:
        raise Rejected(
            "conversion.unavailable", f"{name}: there is no function {how.update[:60]!r}"
        )
    try:
        return update(state, event)
    except Rejected:
        raise
    except Exception as error:
        message = f"{name}: {type(error).__name__}: {error}"[:200]
        raise Rejected("conversion.raised", message) from error


def _moved(name: str, origin: MovingOrigin, state: Any, event: Any) -> tuple[Any] | None:
    x, y = at_path(event, origin.x), at_path(event, origin.y)
    if x is None or y is None:
        return None
    key = text(at_path(event, origin.feed_key), name) if origin.feed_key else ""
    time = at_path(event, origin.time) if origin.time else None
    time_ms = None if time is None else whole_number(time, name)
    known = state.get(key)
    if known is not None and time_ms is not None and time_ms < (known[3] or time_ms):
        return None
    length, turn = converter(origin.unit, "m"), converter(origin.heading_unit, "deg")
    position = [finite(length.apply(number(each, name)), name) for each in (x, y)]
    heading = at_path(event, origin.heading) if origin.heading else None
    if heading is not None:
        looks = finite(turn.apply(number(heading, name)), name)
    else:
        looks = known[2] if known else 0.0
    state.pop(key, None)  # the one heard of last stands last
    state[key] = [*position, looks, time_ms]
    if len(state) > MOST_ORIGINS:
        del state[next(iter(state))]
    return (state,)


def _rated(name: str, rates: RateEvents, state: Any, event: Any) -> tuple[Any] | None:
    currency, rate = at_path(event, rates.currency), at_path(event, rates.rate)
    began = at_path(event, rates.time)
    if currency is None or rate is None or began is None:
        return None
    value, time_ms = number(rate, name), whole_number(began, name)
    if value <= 0:
        raise Rejected("value.out_of_range", f"{name}: {value} is no rate", "rates are above zero")
    course = [entry for entry in state.get(text(currency, name), ()) if entry[0] != time_ms]
    course.insert(bisect_right(course, time_ms, key=lambda entry: entry[0]), [time_ms, value])
    state[currency] = course[-MOST_RATES:]
    return (state,)


def at_path(event: Any, path: str) -> Any:
    """The value of an attribute, or of one further down: `position.x`; None: it is not there."""
    if not isinstance(event, dict):
        return None
    if path in event:
        return event[path]
    first, _, rest = path.partition(".")
    return at_path(event.get(first), rest) if rest else None
