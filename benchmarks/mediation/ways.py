"""What a node does with an event between the channel and those who read it, in four ways. [ME-9]

Every way gets stored events and gives the bytes that a consumer receives. What several consumers
have in common is done once, whatever way: an event is decoded once, brought to root once, and
turned once for every interpretation among the consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

import msgspec

from benchmarks.mediation.by_hand import BY_HAND
from benchmarks.mediation.events import PRODUCER, ROOT_TYPE, SENT, Form, interpretations
from benchmarks.mediation.reflective import Reflective
from rapport.core.event import StoredEvent
from rapport.mediation.codegen.json_fast_path import (
    BatchFunction,
    NumberCondition,
    compile_batch_path,
)

Values = list[Any]
Work = Callable[[Sequence[StoredEvent]], Values]
_Found = TypeVar("_Found")
_MOST_KEPT = 4_000
_COLDEST_F, _COLDEST_C = -400.0, -240.0
"""The filter lets everything pass: the most work for what comes after it."""


class Way(Protocol):
    """`deliver` gives what the consumer of that number gets of a batch."""

    def deliver(self, batch: Sequence[StoredEvent], consumer: int) -> list[bytes]:
        """In order, without those that the filter keeps back."""


class Once:
    """A step done once per event, however many consumers ask; None for what is filtered out."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._done: dict[int, Any] = {}
        self.worked = 0
        """Events it was done for."""

    def of(self, batch: Sequence[StoredEvent]) -> Values:
        """The results in the order of the batch."""
        done = self._done
        left = [item for item in batch if item.position not in done]
        if len(left) == len(batch):
            return self._fresh(batch)
        if left:
            self._fresh(left)
        return [done[item.position] for item in batch]

    def _fresh(self, batch: Sequence[StoredEvent]) -> Values:
        found = self._work(batch)
        self.worked += len(batch)
        done = self._done
        done.update(zip([item.position for item in batch], found, strict=True))
        for position in list(islice(done, max(len(done) - _MOST_KEPT, 0))):
            del done[position]
        return found


class Baseline:
    """By channel alone: nobody looks into an event."""

    def deliver(self, batch: Sequence[StoredEvent], consumer: int) -> list[bytes]:
        """The bytes as they are."""
        return [item.event.data for item in batch]


class ContentBased:
    """Decoded for a filter on one attribute; the bytes go on as they are."""

    def __init__(self) -> None:
        self.seen = Once(self._filter)

    def deliver(self, batch: Sequence[StoredEvent], consumer: int) -> list[bytes]:
        """The bytes of those that pass."""
        passed = self.seen.of(batch)
        return [item.event.data for item, good in zip(batch, passed, strict=True) if good]

    def _filter(self, batch: Sequence[StoredEvent]) -> Values:
        decode = msgspec.json.Decoder().decode
        return [decode(item.event.data)["a0"] > _COLDEST_F for item in batch]


class Mediated:
    """To root, filtered there, from root to each interpretation of a consumer, encoded again: from
    bytes to bytes, in one step where all consumers want the same, else by the bytes of root, as a
    node keeps them.
    """

    def __init__(self, form: Form, *, readers: int) -> None:
        """`readers`: how many interpretations there are among the consumers."""
        held, _ = interpretations(form, consumers=readers)
        arrive = (held.plan(PRODUCER, SENT, "in"), held.types_met(PRODUCER))
        leave = [
            (held.plan(name, ROOT_TYPE, "out"), held.types_met(name))
            for name in (f"consumer-{number}" for number in range(readers))
        ]
        warm = NumberCondition("a0", ">", _COLDEST_C)
        if readers == 1:
            self.readers = [Once(_of_data(there(compile_batch_path([arrive, leave[0]], warm))))]
            return
        root = Once(_of_data(there(compile_batch_path([arrive], warm))))
        self.readers = [Once(_said(root, there(compile_batch_path([each])))) for each in leave]

    def deliver(self, batch: Sequence[StoredEvent], consumer: int) -> list[bytes]:
        """In the consumer's own terms."""
        told = self.readers[consumer % len(self.readers)].of(batch)
        return [each for each in told if each]


def _of_data(through: BatchFunction) -> Work:
    """Those that are not wanted are empty. An event that is not as its type says would be None,
    and be missed by who counts what arrives.
    """
    return lambda batch: through([item.event.data for item in batch])


def _said(root: Once, through: BatchFunction) -> Work:
    """The filter lets everything pass, so that nothing is empty here."""
    return lambda batch: through(root.of(batch))


def there(found: _Found | None) -> _Found:
    """What can be made of the plans of a benchmark."""
    assert found is not None
    return found


class ByHand:
    """As mediated, written for these types by hand."""

    def __init__(self, form: Form) -> None:
        self._told = Once(BY_HAND[form])

    def deliver(self, batch: Sequence[StoredEvent], consumer: int) -> list[bytes]:
        """In the consumer's own terms."""
        return [each for each in self._told.of(batch) if each]


class AtConsumers:
    """Every consumer transforms by itself what comes in the producer's terms."""

    def __init__(self, form: Form, *, consumers: int) -> None:
        self.own = [Mediated(form, readers=1) for _ in range(consumers)]

    def deliver(self, batch: Sequence[StoredEvent], consumer: int) -> list[bytes]:
        """In the consumer's own terms."""
        return self.own[consumer].deliver(batch, consumer)


class ByReflection:
    """As mediated, but values are walked, and rules looked up meanwhile."""

    def __init__(self, form: Form, *, readers: int, remembering: bool = False) -> None:
        held, _ = interpretations(form, consumers=readers)
        arrive = Reflective(held, PRODUCER, "in", remembering=remembering)
        self._root = Once(lambda batch: _passed([arrive(value, SENT) for value in _decoded(batch)]))
        self._readers = [
            Once(self._walked(Reflective(held, f"consumer-{number}", "out",
                                         remembering=remembering)))
            for number in range(readers)
        ]  # fmt: skip

    def deliver(self, batch: Sequence[StoredEvent], consumer: int) -> list[bytes]:
        """In the consumer's own terms."""
        told: list[bytes] = self._readers[consumer % len(self._readers)].of(batch)
        return told

    def _walked(self, turn: Reflective) -> Work:
        encode = msgspec.json.Encoder().encode
        return lambda batch: [encode(turn(each, ROOT_TYPE)) for each in self._root.of(batch)]


def _decoded(batch: Sequence[StoredEvent]) -> Values:
    decode = msgspec.json.Decoder().decode
    return [decode(item.event.data) for item in batch]


def _passed(values: Values) -> Values:
    assert all(value["a0"] > _COLDEST_C for value in values), "the filter lets everything pass"
    return values
