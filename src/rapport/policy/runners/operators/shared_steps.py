"""What the operators of one runner compute once for all of them: numbers of identities and of
events, whose events matter, look-ups, and what each step without memory makes of a batch. [PO-6,
PO-13]

A step is named by what it depends on: the numbering (and with it the version of the tables), the
constraints, the relationship with its constants. What two plans name alike is computed for the
first that asks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import ReferenceType, WeakValueDictionary, ref

import pyarrow as pa

from rapport.policy.runners.operators.identities import Identities
from rapport.policy.runners.operators.intake import StreamRows
from rapport.tables.instances import Instances

Made = TypeVar("Made")
_NOT_YET: Any = object()


class StepCounts(NamedTuple):
    """How often a step of a batch was wanted, and how often it had to be computed."""

    wanted: int = 0
    computed: float = 0
    """Of one of several that are executed as one, its share."""


class SharedCache:
    """Costs one look into a dictionary per step and batch; keeps nothing that no operator uses,
    and of batches only what the latest one gave.
    """

    def __init__(self) -> None:
        self._numberings: dict[str, list[ReferenceType[Identities]]] = {}
        self._kept: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self._batch: pa.RecordBatch | None = None
        self._made: dict[Hashable, Any] = {}
        self.batch = 0
        """The number of the batch that operators are at."""
        self.next_ordinal = self._first = 0
        self.wanted = 0
        self.computed = 0
        """Steps of all batches so far."""

    def identities(
        self, concept: str, instances: Instances, saved: Sequence[str] | None = None
    ) -> Identities:
        """The numbering of a concept for these tables; `saved`: identities that must have the codes
        0, 1, 2, ..., because a state speaks of them.
        """
        living = [one for one in self._numberings.get(concept, ()) if one() is not None]
        for one in living:
            known = one()
            if known is not None and known.instances is instances and known.begins_with(saved):
                return known
        made = Identities(instances)
        if saved is not None:
            made.restore(list(saved))
        self._numberings[concept] = [*living, ref(made)]
        return made

    def keep(self, key: Hashable, make: Callable[..., Made], *arguments: Any) -> Made:
        """What is made of tables alone, for as long as some operator holds it."""
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make(*arguments)
        made: Made = found
        return made

    def kept(self, key: Hashable) -> Any:
        """What is kept under a key; None when nobody holds it."""
        return self._kept.get(key)

    def keep_instead(self, key: Hashable, made: Any) -> None:
        """Keeps something for who asks next; who holds what was kept before goes on with that."""
        self._kept[key] = made

    def forget_kept(self) -> None:
        """Makes everything anew for who asks next: codes changed."""
        self._kept.clear()

    def turn_to(self, readings: pa.RecordBatch) -> int:
        """Goes on with a batch, perhaps the one others had before; returns the ordinal of its first
        event: the same for all, however many batches each of them has seen.
        """
        if readings is not self._batch:
            self._batch, self._made = readings, {}
            self.batch += 1
            self._first = self.next_ordinal
            self.next_ordinal += len(readings)
        return self._first

    def count_past(self, ordinal: int) -> int:
        """Makes events to come larger than all before `ordinal`, which a state speaks of; returns
        by how much that state's ordinals must grow to end where events to come begin.
        """
        self.next_ordinal = max(self.next_ordinal, ordinal)
        return self.next_ordinal - ordinal

    def forget_batch(self) -> None:
        """All operators have had it."""
        self._batch, self._made = None, {}

    def once(self, key: Hashable, make: Callable[..., Made], *arguments: Any) -> Made:
        """What a step makes of the batch. Nothing is kept of a step that raises."""
        return self._once(self._made, key, make, *arguments)

    def made(self, key: Hashable) -> Any:
        """What was made of the batch under a key; None when nothing was."""
        return self._made.get(key)

    def note(self, key: Hashable, made: Any) -> None:
        """Keeps something made of the batch for who asks next."""
        self._made[key] = made

    def once_of(
        self, rows: StreamRows, key: Hashable, make: Callable[..., Made], *arguments: Any
    ) -> Made:
        """What a step makes of rows, now or as long as somebody keeps them."""
        return self._once(rows.made, key, make, *arguments)

    def _once(
        self, known: dict[Hashable, Any], key: Hashable, make: Callable[..., Made], *arguments: Any
    ) -> Made:
        self.wanted += 1
        made: Made = known.get(key, _NOT_YET)
        if made is _NOT_YET:
            made = known[key] = make(*arguments)
            self.computed += 1
        return made
