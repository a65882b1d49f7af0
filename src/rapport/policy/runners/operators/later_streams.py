"""The streams whose rows an operator reads only when a match asks about absence. [PO-6, PO-13]"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from rapport.policy.runners.operators.identities import Identities
from rapport.policy.runners.operators.intake import StreamRows
from rapport.policy.runners.operators.later_rows import DeferredRows
from rapport.policy.runners.operators.shared_steps import SharedCache

_NOT_YET = 1 << 62


class DeferredRowsReader:
    """The rows of one stream as one operator sees them: from the first batch it took on."""

    def __init__(self, stream: str, identities: Identities, key: Hashable) -> None:
        self.stream, self._identities, self._key = stream, identities, key
        self.renew(SharedCache())

    def renew(self, shared: SharedCache) -> None:
        """Begins with the next batch, as if none had come before."""
        self.rows: DeferredRows = shared.keep(self._key, DeferredRows)
        self._horizon = self.rows.readers.add()
        self.since = _NOT_YET
        """The ordinal from which on it sees them."""

    @property
    def reaches_back_to(self) -> int:
        """The time from which on its matches may ask about rows."""
        return self._horizon.before

    def take(self, rows: StreamRows, first: int, batch: int) -> None:
        """Keeps what a batch brings; `first`: the ordinal of its first event."""
        self.since = min(self.since, first)
        self.rows.add(rows, first, batch)

    def done_before(self, time: int) -> None:
        """No match of this operator asks about what came before a time."""
        self.rows.readers.move(self._horizon, time)

    def span(self, low: int, high: int) -> slice:
        """The places of the rows it sees with times in [low, high)."""
        return self.rows.span(low, high, self.since)

    def known(self) -> int:
        """How many identities have codes."""
        return len(self._identities.ids)


class DeferredStreams:
    """The readers of one operator; a stream that nobody asked for is not kept."""

    def __init__(
        self, identities: Mapping[str, Identities], blurs: Hashable, shared: SharedCache
    ) -> None:
        """`blurs`: what tells rows with uncertain times from others."""
        self._identities, self._blurs, self._shared = identities, blurs, shared
        self._readers: dict[str, DeferredRowsReader] = {}

    def of(self, stream: str) -> DeferredRowsReader:
        """The rows of a stream, from now on."""
        if stream not in self._readers:
            known = self._identities[stream.partition(".")[0]]
            key = (DeferredRows, stream, known, self._blurs)
            made = self._readers[stream] = DeferredRowsReader(stream, known, key)
            made.renew(self._shared)
        return self._readers[stream]

    def take(self, stream: str, rows: StreamRows, first: int) -> None:
        """Keeps what a batch brings of a stream, if somebody asked for it."""
        reader = self._readers.get(stream)
        if reader is not None:
            reader.take(rows, first, self._shared.batch)

    def done_before(self, time: int) -> None:
        """No match of this operator asks about what came before a time."""
        for reader in self._readers.values():
            reader.done_before(time)

    def renew(self) -> None:
        """Begins with the next batch, as if none had come before."""
        for reader in self._readers.values():
            reader.renew(self._shared)
