"""The policies of a running node: taken from its files when it starts and when it is told to, and
changed in between. [PO-9, UX-2]
"""

from __future__ import annotations

import asyncio

import msgspec

from rapport.communication.declare import Communication
from rapport.communication.declare import check_actions as check_action_texts
from rapport.core.errors import PolicyError, Problem, SiteError
from rapport.kernel.telemetry import get_logger
from rapport.policy.compiler.compile import Compiled, compile_policy
from rapport.policy.engine import PolicyEngine
from rapport.policy.life.asking import Done
from rapport.policy.life.life import PolicyLife
from rapport.policy.terms import PolicyTerms
from rapport.site.checkers import check_actions, check_data
from rapport.site.facts import SiteFacts
from rapport.site.linting import check_instances
from rapport.site.parts import SiteParts, has_errors
from rapport.site.policies import policy_files, read_policy
from rapport.site.rooms import check_own_actions, check_runnable
from rapport.site.site import Site, load_site
from rapport.site.terms import terms_of_policies

_log = get_logger(__name__)


class PolicyTexts(msgspec.Struct, frozen=True):
    """What the files of a site say; `unread` are policies whose file cannot be read."""

    texts: dict[str, str]
    unread: frozenset[str]
    problems: tuple[Problem, ...] = ()


def texts_in_site(site: Site) -> PolicyTexts:
    """Reads the policies of a site; blocks on the disk."""
    files, _window, _problems = policy_files(site.file, site.directory)
    texts: dict[str, str] = {}
    problems: list[Problem] = []
    for name, file in files.items():
        text, faults = read_policy(file)
        problems += faults
        if text is not None:
            texts[name] = text
    return PolicyTexts(texts, frozenset(files.keys() - texts.keys()), tuple(problems))


class SiteCompiler:
    """What a text means at a site, with the checks that a whole site makes of its policies."""

    def __init__(self, site: Site, people: Communication) -> None:
        self._site, self._people = site, people
        policies = site.file.section("policies").values
        self._has_terms = "interpretation" in policies or "interpretations" in policies

    def compile(self, name: str, text: str) -> Compiled:
        """Raises PolicyError with every fault."""
        site = self._site
        compiled = compile_policy(
            text,
            name=name,
            ontology=site.ontology,
            window_ms=site.window_ms,
            terms=self._terms(name),
        )
        problems = self._checked(name, text, compiled)
        if has_errors(problems):
            raise PolicyError([*problems, *compiled.problems])
        return msgspec.structs.replace(compiled, problems=(*compiled.problems, *problems))

    def _terms(self, name: str) -> PolicyTerms | None:
        if not self._has_terms:
            return None
        site = self._site
        found, problems = terms_of_policies(site.file, site.directory, site.ontology, [name])
        if name in found.unknown:
            raise PolicyError(problems)
        return found.terms.get(name)

    def _checked(self, name: str, text: str, compiled: Compiled) -> list[Problem]:
        site = self._site
        parts = SiteParts(
            file=site.file,
            directory=site.directory,
            ontology=site.ontology,
            tables=site.tables,
            policies={name: compiled},
            texts={name: text},
        )
        fields = SiteFacts(site.tables, parts.policies).fields(name)
        return [
            *check_actions(parts),
            *check_data(parts),
            *check_instances(parts),
            *check_runnable(parts),
            *check_own_actions(parts, self._people, {name: fields}),
            *check_action_texts(
                site.file, self._people, {name: compiled.plan.actions}, {name: fields}
            ),
        ]


class Policies:
    """What a node's doors ask: changes go to `life`, once `begin` was called."""

    def __init__(
        self, site: Site, people: Communication, life: PolicyLife, engine: PolicyEngine
    ) -> None:
        self._site, self._people = site, people
        self.life, self._engine = life, engine
        self._begun = False

    async def begin(self, *, record: bool = True) -> None:
        """Takes in the site's files and all changes on record. Once; later calls do nothing."""
        if self._begun:
            return
        found = await asyncio.to_thread(texts_in_site, self._site)
        if not self._site.faults:  # else it is not known which of them passed their checks
            for name, compiled in self._site.policies.items():
                if name in found.texts:
                    self.life.texts.know(name, found.texts[name], compiled)
        done = await self.life.begin(found.texts, found.unread, record=record)
        self._begun = True
        for problem in found.problems:
            _log.warning("policy not read", reason=problem.message, file=problem.file)
        for policy in self.life.policies():
            for problem in policy.problems:
                _log.warning("policy broken", policy=policy.name, reason=problem.message)
        if done:
            _log.info("policies changed", changes=[f"{one.name} {one.what}" for one in done])

    async def reload(self) -> list[Done]:
        """Takes over ontology and policies from the site's files, at one place of the stream;
        policies that this breaks are marked with the reasons.

        Raises SiteError or PolicyError with every fault; then everything stays as it was.
        """
        site = await asyncio.to_thread(load_site, self._site.directory, policies=[])
        problems = [*site.faults, *self._other_streams(site)]
        found = await asyncio.to_thread(texts_in_site, site)
        if problems or found.problems:
            raise SiteError([*problems, *found.problems])
        compiler = SiteCompiler(site, self._people)

        async def renew() -> None:
            await self._engine.renew(self._engine.pull, site.ontology)

        return await self.life.take_files(found.texts, found.unread, compiler.compile, renew=renew)

    def _other_streams(self, site: Site) -> list[Problem]:
        """What the running engine does not read."""
        known = self._engine.ontology.streams()
        return [
            Problem(
                code="reload.other_streams",
                message=f"the running node does not know {stream!r}, or as something else",
                file=site.file.name,
                hint="start the node again; what is received meanwhile is kept",
            )
            for stream, kind in sorted(site.ontology.streams().items())
            if known.get(stream) != kind
        ]
