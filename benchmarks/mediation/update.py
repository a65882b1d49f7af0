"""What a change of an interpretation does to the events that flow meanwhile. [ME-6]

Events come on a fixed beat and are mediated on the loop from bytes to bytes. A change is checked
and its transformers are made in a thread beside it, in short turns with rests between them; then
references are exchanged.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.mediation.events import PRODUCER, ROOT_TYPE, SENT, interpretations, value
from rapport.kernel.clock import SystemClock
from rapport.mediation.background_work import run_in_background
from rapport.mediation.codegen.transformer import Transformer, make_transformer
from rapport.mediation.conversion.conversions import Formula, converts
from rapport.mediation.interpretations.model import Interpretation, Rule
from rapport.mediation.interpretations.registry import InterpretationRegistry
from rapport.mediation.interpretations.type_changes import Declare, apply_change
from rapport.mediation.types import Attribute, ComplexType

BEAT_MS = 2.0
_EVERY = 50
"""Events between two changes."""
_CLOCK = SystemClock()


class Delays(msgspec.Struct):
    """Milliseconds from when an event was due until it was mediated; what a change took."""

    events: list[float]
    changes: list[float]
    versions: int
    """In how many versions of the interpretation events were mediated."""


class _Node:
    """The interpretations in force, and the two transformers that events go through."""

    def __init__(self, rules: int) -> None:
        held, declared = interpretations("flat")
        self.changed = 0
        self._declared, self._rules = declared[1], rules
        self.held: InterpretationRegistry = held
        self.arrive: Transformer = make_transformer(held, PRODUCER, SENT, "in")
        self.leave: Transformer = make_transformer(held, "consumer-0", ROOT_TYPE, "out")
        self.change()

    def change(self) -> None:
        """Declares the producer's interpretation anew; may run in any thread, one at a time."""
        self.changed += 1
        held, problems = apply_change(self.held, Declare(self._next(self.changed)))
        refused = [problem for problem in problems if problem.severity == "error"]
        assert held is not self.held, refused
        arrive = make_transformer(held, PRODUCER, SENT, "in")
        leave = make_transformer(held, "consumer-0", ROOT_TYPE, "out")
        self.held, self.arrive, self.leave = held, arrive, leave

    def _next(self, number: int) -> Interpretation:
        """With other numbers in the conversion, and as many rules as asked for."""
        further = range(self._rules - 1)
        attributes = (Attribute("a", "number"), Attribute("b", "text"))
        to_celsius = converts(
            "to-celsius", "Fahrenheit", "Celsius", Formula(5.0, -160.0 + number / 1e6, 9.0)
        )
        return msgspec.structs.replace(
            self._declared,
            types=(*self._declared.types, *(ComplexType(f"T{n}", attributes) for n in further)),
            rules=(*self._declared.rules, *(Rule(f"T{n}.number", "twice") for n in further)),
            conversions=(to_celsius, converts("twice", "number", "number", Formula(2.0))),
        )


def changed_interpretations(rules: int) -> Callable[[], None]:
    """A change with that many rules, and the making of its transformers, ready to be done."""
    return _Node(rules).change


async def delays(rules: int, events: int, *, changing: bool) -> Delays:
    """Of `events` on a beat of 2 ms, with a change after every fiftieth or none.

    What is there before is kept out of the search for garbage, as `rapport up` does it.
    """
    node = _Node(rules)
    gc.collect()
    gc.freeze()
    try:
        return await _flow(node, events, changing)
    finally:
        gc.unfreeze()


async def _flow(node: _Node, events: int, changing: bool) -> Delays:
    said = msgspec.json.encode(value("flat", 5, 3))
    found = Delays([], [], 0)
    waiting: list[asyncio.Task[None]] = []
    told: set[bytes] = set()
    began = _CLOCK.steady_ns()
    for number in range(events):
        due = began + int(number * BEAT_MS * 1e6)
        await _CLOCK.sleep(max(due - _CLOCK.steady_ns(), 0) / 1e6)
        told.add(_mediated(node, said))
        found.events.append((_CLOCK.steady_ns() - due) / 1e6)
        if changing and number % _EVERY == _EVERY - 1 and all(task.done() for task in waiting):
            waiting.append(asyncio.create_task(_timed(node.change, found.changes)))
    await asyncio.gather(*waiting)
    found.versions = len(told)
    return found


def _mediated(node: _Node, said: bytes) -> bytes:
    at_root: Any = node.arrive(msgspec.json.decode(said))
    return msgspec.json.encode(node.leave(at_root))


async def _timed(work: Callable[[], None], took: list[float]) -> None:
    began = _CLOCK.steady_ns()
    await run_in_background(work)
    took.append((_CLOCK.steady_ns() - began) / 1e6)
