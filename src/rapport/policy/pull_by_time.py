"""Pull data that change as time goes on, and a runner that goes over to them where live did. [PO-2,
PO-8]

Rows that came into force at a place of the stream are used for readings with a time from the
watermark on that had been reached there. So everything before it is decided by the rows of before,
then the steps are made anew with the new rows and given what they knew: what `PolicyEngine` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import pyarrow as pa

from rapport.core.detection import Detection, Undecided
from rapport.core.times import format_time
from rapport.policy.explaining.rows_then import unusable_text
from rapport.policy.ontology import PushSource
from rapport.policy.plan import Plan
from rapport.policy.rows_on_record import RecordedTableRows, version_at
from rapport.policy.runners.base import END_OF_TIME, PullData
from rapport.policy.runners.local import LocalRunner
from rapport.tables.recorded_rows import FROM_THE_BEGINNING, RowsVersion
from rapport.tables.tables import Tables


class TableSwitch(msgspec.Struct, frozen=True):
    """Readings with a time from `since` on meet what `pull` gives; it is asked when it comes to
    that.
    """

    since: int
    pull: Callable[[], PullData]


class PullByTime(msgspec.Struct, frozen=True, kw_only=True):
    """What readings of each time meet: first `pull`, then in rising order the switches."""

    pull: PullData
    switches: tuple[TableSwitch, ...] = ()


def as_pull_by_time(pull: PullData | PullByTime) -> PullByTime:
    """The same at all times, unless it says otherwise."""
    return pull if isinstance(pull, PullByTime) else PullByTime(pull=pull)


class TableHistory:
    """What the record of tables gives a replay."""

    def __init__(self, tables: Tables, versions: Sequence[RowsVersion]) -> None:
        """`versions`: oldest first, at least one."""
        self.versions = versions
        self.record = RecordedTableRows(tables)
        self._tables = tables

    @property
    def known_since(self) -> int | None:
        """Readings before this time meet the first rows there are; None: all are known."""
        since = self.versions[0].place.since
        return since if since > FROM_THE_BEGINNING else None

    def pull(self, plans: Sequence[Plan]) -> PullByTime:
        """For these plans: changes of tables that none of them reads are passed over."""
        read = self._read_by(plans)
        switches: list[TableSwitch] = []
        for version in self.versions[1:]:
            if version.changed & read:
                if switches and switches[-1].since == version.place.since:
                    switches.pop()
                at = partial(self.record.at, version)
                switches.append(TableSwitch(version.place.since, at))
        return PullByTime(pull=self.record.at(self.versions[0]), switches=tuple(switches))

    def at(self, time: int) -> PullData:
        """What readings of a time met."""
        version = version_at(self.versions, time)
        assert version is not None
        return self.record.at(version)

    def said(self, first: int | None) -> list[str]:
        """What people should know about the rows that were used, the first reading being of that
        time; nothing when tables were always as they are.
        """
        said: list[str] = []
        if len(self.versions) > 1 or not self.record.is_of_today(self.versions[-1]):
            count = len(self.versions)
            of = "1 version" if count == 1 else f"{count:,} versions"
            said.append(f"the tables of then are used, {of} on record; --tables now: those of now")
            since = self.known_since
            if since is not None and first is not None and first < since:
                said.append(
                    f"nothing is on record of the tables before {format_time(since)}: "
                    "the first rows that are known are used"
                )
        told = self.record.unusable.items()
        return said + [unusable_text(name, rows) for name, rows in told]

    def _read_by(self, plans: Sequence[Plan]) -> set[str]:
        """Functions, and columns that follow from others, may look into any table."""
        declared = self._tables.declarations()
        concepts = {concept for plan in plans for concept in plan.concepts()}
        deriving = self._tables.deriving
        if deriving is not None and deriving.version():
            return set(declared)
        looked_up = {pair.table for pair in self._tables.functions()}
        own = {name for name, one in declared.items() if one.concept in concepts}
        return own | looked_up


class SwitchingRunner:
    """A local runner that goes over to other tables at their times; see LocalRunner for the rest.

    A switch costs a snapshot, as live, and typing the rows that changed.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        pull: PullData | PullByTime,
        *,
        lateness_ms: int,
        sources: Mapping[str, PushSource],
        began: int | None = None,
    ) -> None:
        by_time = as_pull_by_time(pull)
        self._lateness, self._sources, self._began = lateness_ms, sources, began
        self._left = deque(by_time.switches)
        self._undecided: list[Undecided] = []
        self.runner = self._made(plans, by_time.pull)

    def feed(self, readings: pa.RecordBatch) -> list[Detection]:
        """Takes readings as they arrived; returns what became certain."""
        found: list[Detection] = []
        while self._left and len(readings):
            times = readings.column("time").to_numpy()
            latest = np.maximum(np.maximum.accumulate(times), self.runner.latest)
            # Up to the reading with which time gets there: what it releases meets the new rows.
            cut = int(np.searchsorted(latest, self._left[0].since + self._lateness))
            if cut == len(readings):
                break
            found += self.runner.feed(readings.slice(0, cut))
            readings = readings.slice(cut)
            found += self._go_over(int(latest[cut]))
        return found + self.runner.feed(readings)

    def advance(self, time_ms: int) -> list[Detection]:
        """Moves time on without a reading."""
        return self._go_over(time_ms) + self.runner.advance(time_ms)

    def finish(self) -> list[Detection]:
        """Lets time run on until everything pending is decided."""
        return self._go_over(END_OF_TIME) + self.runner.finish()

    def take_undecided(self) -> list[Undecided]:
        """See LocalRunner."""
        taken, self._undecided = self._undecided, []
        return taken + self.runner.take_undecided()

    def _go_over(self, time_ms: int) -> list[Detection]:
        """Through all switches up to where time gets."""
        found: list[Detection] = []
        is_untouched = self.runner.latest <= -END_OF_TIME
        while self._left and self._left[0].since + self._lateness <= time_ms:
            switch = self._left.popleft()
            if not is_untouched:  # else time would have moved before the first reading
                found += self.runner.advance(switch.since + self._lateness)
            elif self._left and self._left[0].since + self._lateness <= time_ms:
                continue
            self._switch(switch.pull())
        return found

    def _switch(self, pull: PullData) -> None:
        before = self.runner
        self._undecided += before.take_undecided()
        self.runner = self._made([*before.plans(), *before.failed_plans()], pull)
        self.runner.restore_known(before.snapshot())
        self.runner.count_on(before)
        self.runner.late_readings = before.take_late()

    def _made(self, plans: Sequence[Plan], pull: PullData) -> LocalRunner:
        return LocalRunner(
            plans,
            pull,
            lateness_ms=self._lateness,
            sources=self._sources,
            began=self._began,
        )
