"""Reload of a site's files by a running node: people, actions, sources, interpretations, tables,
ontology and policies, all or nothing. [UX-2, PO-9, CO-3]

Everything is read and checked before anything changes. Then people come first and removed phrases
go last: a detection of the old policies is handled by their actions, one of the new policies by the
new files. Pending messages stay as they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from rapport.communication.adapters.adapter_config import adapter_names
from rapport.communication.assembly import Assembly
from rapport.communication.config import CommunicationConfig, communication_from_site
from rapport.communication.directory import PeopleChange
from rapport.communication.ledger import Ledger, Question
from rapport.communication.ledger_rows import CLOSED, MessageRow
from rapport.core.errors import Problem, SiteError
from rapport.kernel.plugins import Plugins
from rapport.kernel.telemetry import get_logger
from rapport.kernel.toml import TomlFile
from rapport.node.interpretations import FormerInterpretations, NodeInterpretations
from rapport.node.policies import Policies
from rapport.policy.lifecycle.lifecycle import ChangeResult
from rapport.site.actions import OwnActions, TextNeeds
from rapport.site.site import Site, load_site

TAKEN_OVER = frozenset(
    {
        "concepts",
        "relationships",
        "groups",
        "containers",
        "functions",
        "tables",
        "sources",
        "interpretations",
        "policies",
        "actions",
        "contrary",
        "peers",
        "collectives",
        "adapters",
    }
)
"""Tables of a site file that a reload takes over; of `adapters` only new ones. A change anywhere
else needs a restart: the node opened endpoints, files and connections by it.
"""
PEOPLE = ("peers", "collectives", "actions", "adapters")


def needs_restart(
    before: TomlFile,
    after: TomlFile,
    *,
    people: bool,
    adapters: Collection[str],
    begun: Mapping[str, Any] = MappingProxyType({}),
) -> list[Problem]:
    """Every table that differs and cannot be taken over, at its place. `people`: whether they can
    be; `adapters` run already, and go on with the settings that they began with. `begun`: those
    settings of adapters that came by a reload, also by one that failed.
    """
    old, new = before.values, after.values
    names = [name for name in (*new, *old) if name not in TAKEN_OVER]
    if not people:
        names += PEOPLE
    problems = [
        _restart(after, (name,), f"[{name}]")
        for name in dict.fromkeys(names)
        if old.get(name) != new.get(name)
    ]
    former, present = _table(old, "adapters"), _table(new, "adapters")
    problems += [
        _restart(after, ("adapters", name), f"[adapters.{name}]")
        for name in dict.fromkeys((*former, *present))
        if people and former.get(name) != present.get(name) and (name in former or name in adapters)
        # What a reload brought that then failed is no change when it is tried again.
        if name in former or name not in begun or begun[name] != present[name]
    ]
    return problems


def actions_changed(before: CommunicationConfig, after: CommunicationConfig) -> list[str]:
    """The phrases about which something else is done."""
    phrases = {*before.actions, *after.actions}
    return sorted(one for one in phrases if before.actions.get(one) != after.actions.get(one))


def _restart(file: TomlFile, path: tuple[str, ...], what: str) -> Problem:
    return file.problem(
        path,
        "reload.needs_restart",
        f"needs a restart: {what} has changed",
        hint="start the node again, or take this change back; readings received meanwhile are kept",
    )


def _table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = values.get(name, {})
    return found if isinstance(found, dict) else {}


_MOST_LOOKED_AT = 10_000
_log = get_logger(__name__)


class SiteReloaded(msgspec.Struct, frozen=True, kw_only=True):
    """What a reload changed, by name, and what to think of."""

    people: list[str] = []
    """`peer ana changed`, `collective guards joined: ben`."""
    actions: list[str] = []
    """Phrases about which something else is done."""
    sources: list[str] = []
    interpretations: list[str] = []
    policies: list[ChangeResult] = []
    warnings: list[str] = []


class SiteReload:
    """Reloads one node's site, one time after the other. Belongs to its event loop."""

    def __init__(
        self,
        site: Site,
        people: CommunicationConfig,
        *,
        meanings: NodeInterpretations,
        policies: Policies,
        communication: Assembly,
        own_actions: OwnActions,
        text_needs: TextNeeds,
        plugins: Plugins,
    ) -> None:
        self.site = site
        """As its files were when they were read last."""
        self._people, self._own_actions, self._plugins = people, own_actions, plugins
        self._text_needs = text_needs
        self._meanings, self._policies = meanings, policies
        self._communication = communication
        self._begun: dict[str, Any] = {}
        """Settings of adapters that a reload started, as of their start."""
        self._turn = asyncio.Lock()

    async def reload(self, ledger: Ledger, *, by: str = "") -> SiteReloaded:
        """Takes the files over; all of it counts when it returns.

        Raises SiteError or PolicyError with every fault at its place, then everything is as it was;
        what only a restart can change is among them (`reload.needs_restart`). Raises Unavailable
        also when all is taken over and only others could not be told of it: to be tried again.
        """
        async with self._turn:
            site = await asyncio.to_thread(
                load_site, self.site.directory, data_directory=self.site.data_directory
            )
            people = await self._checked(site)
            warnings = await self._warnings(people, ledger)
            before, former = self._people, self._meanings.former()
            self._note_adapters(site)
            # Until the old policies have ended, their context is still known.
            changed = await self._use(people, before, by)
            try:
                meant = await self._meanings.take_over(site)
                policies = await self._policies.take_over(site, people)
            except BaseException:
                await asyncio.shield(self._go_back(before, former, by))
                raise
            # The tables that run are those of the start, which hold what was read now.
            self.site = msgspec.structs.replace(site, tables=self.site.tables)
            await self._use(people, people, by)
            await self._communication.announce_reload()
            done = SiteReloaded(
                people=[_change_text(change) for change in changed],
                actions=actions_changed(before, people),
                sources=meant.sources,
                interpretations=meant.interpretations,
                policies=policies,
                warnings=[*meant.warnings, *warnings],
            )
        _log.info("site reloaded", by=by, people=done.people, actions=done.actions)
        return done

    async def _checked(self, site: Site) -> CommunicationConfig:
        """Its people; raises SiteError with all that cannot be taken over."""
        assembly = self._communication
        people, wrong = communication_from_site(
            site.file, site.directory, adapters=adapter_names(self._plugins)
        )
        problems = [one for one in wrong if one.severity == "error"]
        problems += needs_restart(
            self.site.file,
            site.file,
            people=assembly.can_take_over,
            adapters=assembly.outputs.names,
            begun=self._begun,
        )
        problems += self._meanings.problems_with(site) + self._policies.problems_with(site)
        if not problems:
            problems = await self._policies.broken_by(site, people)
        if problems:
            raise SiteError(list(dict.fromkeys(problems)))
        return people

    def _note_adapters(self, site: Site) -> None:
        """Those that do not run yet begin with what the site says now, and stay though the rest of
        the reload fails.
        """
        running = self._communication.outputs.names
        tables = site.file.section("adapters").values
        self._begun |= {name: table for name, table in tables.items() if name not in running}

    async def _use(
        self, people: CommunicationConfig, before: CommunicationConfig, by: str
    ) -> list[PeopleChange]:
        actions = {**before.actions, **people.actions}

        def follow() -> None:
            self._own_actions.use(people)
            self._text_needs.use(people)
            self._policies.use_texts(self._text_needs.of)
            self._people = people

        return await self._communication.take_over(people, actions, by=by, then=follow)

    async def _go_back(
        self, before: CommunicationConfig, former: FormerInterpretations, by: str
    ) -> None:
        try:
            await self._use(before, before, by)
        finally:
            await self._meanings.take_back(former)

    async def _warnings(self, people: CommunicationConfig, ledger: Ledger) -> list[str]:
        warnings: list[str] = []
        gone = sorted(self._people.peers.keys() - people.peers.keys())
        for peer, count in (await open_messages(ledger, gone)).items():
            messages = "a message" if count == 1 else f"{count} messages"
            warnings.append(
                f"{peer!r} is gone and was asked in {messages} not yet decided: who was asked "
                "stays asked, and their answer counts"
            )
        return warnings


async def open_messages(ledger: Ledger, peers: Collection[str]) -> dict[str, int]:
    """How many messages each of some people has that nothing is decided about; who has none is
    left out.
    """
    found: dict[str, int] = {}
    for peer in peers:
        page = await ledger.find(Question(peer=peer, limit=_MOST_LOOKED_AT))
        messages = await asyncio.to_thread(_messages, ledger, {row.message for row in page.rows})
        still = [row for row in messages if row and row.state not in (CLOSED, "failed")]
        if still:
            found[peer] = len(still)
    return found


def _messages(ledger: Ledger, ids: Collection[str]) -> list[MessageRow | None]:
    return [ledger.message(id) for id in ids]


def _change_text(change: PeopleChange) -> str:
    members = f": {', '.join(change.members)}" if change.members else ""
    return f"{change.kind} {change.name} {change.change}{members}"
