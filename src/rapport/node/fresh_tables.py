"""Tables of a running node: asked again when their lifetime is over, and what changed handed on.
[PO-2]

Mediation looks things up in new rows from its next batch on. Policies get them between two batches,
by `PolicyEngine.refresh_pull`, which commits first.
"""

from __future__ import annotations

import asyncio

from rapport.core.errors import Problem
from rapport.kernel.chance import Chance
from rapport.kernel.clock import Clock
from rapport.kernel.tasks import first_of
from rapport.kernel.telemetry import get_logger
from rapport.mediation.reader import MediationReader
from rapport.policy.engine import PolicyEngine
from rapport.site.pulling import kept_rows_directory
from rapport.site.site import Site
from rapport.tables.freshness import TableStatus
from rapport.tables.held import Changed
from rapport.tables.kept_rows import KeptRows, comes_from_elsewhere
from rapport.tables.loaded import LoadedTable
from rapport.tables.own_thread import in_own_thread
from rapport.tables.refreshing import Refreshing

_log = get_logger(__name__)


class FreshTables:
    """What keeps a node's tables fresh. All calls belong to its event loop."""

    def __init__(
        self,
        site: Site,
        mediation: MediationReader,
        policy: PolicyEngine,
        clock: Clock,
        chance: Chance,
    ) -> None:
        self._site, self._tables, self._clock = site, site.tables, clock
        self._mediation, self._policy = mediation, policy
        self.refreshing = Refreshing(site.tables, clock, chance)
        self._news_for_policies = asyncio.Event()
        self._kept = KeptRows(kept_rows_directory(site.file, site.directory))
        self._to_keep = asyncio.Event()
        self._to_keep.set()
        self._saved: dict[str, LoadedTable] = {}
        site.tables.changed.append(self._hand_on)

    async def run(self) -> None:
        """Works until cancelled; started again after a failure it hands on what was not."""
        await first_of(self.refreshing.run(), self._serve_policies(), self._keep_rows())

    def status(self) -> list[TableStatus]:
        """How fresh each table is, and why one is not."""
        return self.refreshing.status()

    def waits(self) -> bool:
        """Whether something changed that policies were not given yet."""
        return self._news_for_policies.is_set()

    def losses(self, reloaded: Site) -> list[Problem]:
        """Attributes that tables give now and those of the reloaded site do not: policies that run
        may read them.
        """
        new = reloaded.tables
        return [
            Problem(
                code="reload.attribute_gone",
                message=f"no table gives {concept}.{attribute} any more",
                file=reloaded.file.name,
                hint="bring the column back, or start the node again",
            )
            for concept in self._tables.versions
            for attribute in self._tables.instances(concept).columns
            if not new.gives(concept, attribute)
        ]

    def take_over(self, reloaded: Site) -> None:
        """Goes on with the tables of the reloaded site; what is new is found in it, what went is
        gone.
        """
        self._tables.take_over(reloaded.tables, self._clock.now_ms())

    def _hand_on(self, changed: Changed) -> None:
        self._mediation.use_tables(self._mediation.lookups)
        self._to_keep.set()
        if changed.concepts or changed.functions:
            self._news_for_policies.set()

    async def _serve_policies(self) -> None:
        while True:
            await self._news_for_policies.wait()
            revision = self._tables.revision
            await self._policy.refresh_pull(self._tables)
            if self._tables.revision == revision:  # otherwise once more
                self._news_for_policies.clear()

    async def _keep_rows(self) -> None:
        """Keeps on disk what sources elsewhere gave, for a start at which one does not answer."""
        while True:
            await self._to_keep.wait()
            self._to_keep.clear()
            for name, table in self._tables.loaded().items():
                if self._saved.get(name) is not table and comes_from_elsewhere(table.declared):
                    if name not in self._tables.stale:
                        await self._save(table)
                    self._saved[name] = table

    async def _save(self, table: LoadedTable) -> None:
        now_ms = self._clock.now_ms()
        try:
            await in_own_thread(lambda: self._kept.save(table, now_ms), name="tables-keep")
        except OSError as error:
            # Only a start without the source would miss it: no reason to disturb the node.
            _log.warning("rows not kept", table=table.declared.name, error=str(error))
