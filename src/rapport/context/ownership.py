"""Which key a provider's record belongs to: that of its first writer. [CX-9]

A right to write an entity lets a key provide records of it, not change those of others. Names of
providers are free text, so without this any writer could speak in another's name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

RecordKey = tuple[str, str, str, str]
"""Provider, entity type, entity id and scope of a record."""


class Ownership:
    """The owner of each record, by the identity that first wrote it; bounded.

    An owner outlives the validity of its record while the broker runs. A writer without a proven
    identity owns nothing.
    """

    __slots__ = ("_most", "_owners")

    def __init__(self, most: int) -> None:
        """Of more records than `most` those not written for longest are forgotten."""
        self._most = most
        self._owners: OrderedDict[RecordKey, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._owners)

    def owner(self, key: RecordKey) -> str:
        """The identity that the record belongs to; empty: nobody's yet."""
        return self._owners.get(key, "")

    def claim(self, key: RecordKey, identity: str) -> None:
        """The identity wrote the record: it is the owner's from now on, if it was nobody's."""
        if key in self._owners:
            self._owners.move_to_end(key)
        elif identity:
            self._owners[key] = identity
            if len(self._owners) > self._most:
                self._owners.popitem(last=False)

    def recall(self, owners: Mapping[RecordKey, str]) -> None:
        """Takes up what was recorded before a restart."""
        for key, identity in owners.items():
            self.claim(key, identity)
