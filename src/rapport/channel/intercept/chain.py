"""Events on their way through a chain; a step that fails is left out, never the event. Pure.
[CH-10]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from rapport.channel.intercept.interceptor import (
    AppendInterceptor,
    DeliveryInterceptor,
    Standing,
)
from rapport.core.event import Event, StoredEvent

MOST_FAULTS = 5
"""Faults in a row after which an interceptor is switched off."""
_LONGEST_ERROR = 500
T = TypeVar("T")
Step = Callable[[T], Sequence[T]]


class Drop(msgspec.Struct, frozen=True):
    """An event that an interceptor kept out."""

    interceptor: str
    event: Event


class Passed(msgspec.Struct):
    """What a chain made of events: for each of them what is appended, what was dropped, and which
    interceptors were switched off on the way.
    """

    groups: list[tuple[Event, ...]]
    drops: list[Drop]
    switched_off: list[Standing]


def pass_appended(chain: Sequence[Standing], channel: str, events: Sequence[Event]) -> Passed:
    """Runs events through the steps in order; what a step adds goes through those behind it."""
    passed = Passed([], [], [])
    steps = [
        (standing, partial(standing.interceptor.on_append, channel))
        for standing in chain
        if not standing.is_off and isinstance(standing.interceptor, AppendInterceptor)
    ]
    for event in events:
        current: Sequence[Event] = (event,)
        for standing, step in steps:
            current = _step(standing, step, current, passed)
        passed.groups.append(tuple(current))
    return passed


def _step(
    standing: Standing, step: Step[Event], current: Sequence[Event], passed: Passed
) -> list[Event]:
    following: list[Event] = []
    for one in current:
        made = _attempt(standing, step, one, passed)
        following += made
        if not made:
            passed.drops.append(Drop(standing.declared.name, one))
    return following


def pass_delivered(
    chain: Sequence[Standing], channel: str, reader: str, events: Sequence[StoredEvent]
) -> tuple[list[StoredEvent], list[Standing]]:
    """What a reader is given, and which interceptors were switched off on the way."""
    passed = Passed([], [], [])
    current = list(events)
    for standing in chain:
        if standing.is_off or not isinstance(standing.interceptor, DeliveryInterceptor):
            continue
        step = partial(standing.interceptor.on_delivery, channel, reader)
        current = [made for one in current for made in _attempt(standing, step, one, passed)]
    return current, passed.switched_off


def _attempt(standing: Standing, step: Step[T], given: T, passed: Passed) -> Sequence[T]:
    """What a step makes of one event; the event itself when it fails or is off."""
    if standing.is_off:
        return (given,)
    standing.seen += 1
    try:
        made = step(given)
        if not isinstance(made, (tuple, list)):
            made = tuple(made)
        is_changed = len(made) != 1 or made[0] is not given
        if is_changed and not all(isinstance(one, type(given)) for one in made):
            raise TypeError(f"it gives something that is no {type(given).__name__}")
    except Exception as error:  # a plug-in's fault must not cost the event
        note_fault(standing, error)
        if standing.is_off:
            passed.switched_off.append(standing)
        return (given,)
    standing.faults_in_a_row = 0
    if not made:
        standing.dropped += 1
    elif is_changed:
        standing.changed += 1
    return made


def note_fault(standing: Standing, error: Exception) -> None:
    """Counts a fault; too many in a row switch the interceptor off."""
    standing.faults += 1
    standing.faults_in_a_row += 1
    standing.last_error = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
    if standing.faults_in_a_row >= MOST_FAULTS:
        standing.is_off = True
