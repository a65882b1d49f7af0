"""Checks over a whole site that no single room can make; other rooms' checks are added to CHECKERS.
[UX-2]"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from rapport.core.errors import Problem, nearest_names
from rapport.kernel.config_fields import Fields
from rapport.kernel.files import is_file, is_inside
from rapport.kernel.settings import check_settings
from rapport.kernel.toml import Section, TomlFile
from rapport.policy.compiler.compile import CompiledPolicy
from rapport.policy.compiler.scope import first_mentions, table_attributes
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.tree import SourceSpan
from rapport.policy.lifecycle.record import lint_commands, stop_of
from rapport.site.linting import check_chains, check_contrary, check_instances, check_similar
from rapport.site.parts import Checker, SiteParts
from rapport.site.policies import policy_files

TABLES_OF_A_SITE = (
    "site",
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
    "inputs",
    "routing",
    "messages",
    "sessions",
    "arriving",
    "engines",
    "node",
    "channels",
    "access",
    "links",
    "mqtt",
    "context",
    "ensemble",
    "spark",
    "pipeline",
)


def check_known_tables(parts: SiteParts) -> list[Problem]:
    """A table of the file that no room reads is a warning with the nearest known one."""
    problems: list[Problem] = []
    Fields(parts.file.section(), problems, known=TABLES_OF_A_SITE)
    return problems


def check_node(parts: SiteParts) -> list[Problem]:
    """How the node runs: every key known, of its kind, and in its bounds."""
    return check_settings(parts.file.section("node"))


def check_recorded_events(parts: SiteParts) -> list[Problem]:
    """Recorded events lie in the site or are named absolutely; a missing file is a warning, as it
    can be replaced."""
    problems: list[Problem] = []
    for name, source in parts.ontology.sources.items():
        section = parts.file.section("sources", name)
        target = parts.directory / source.events
        if not source.events:
            continue
        outside = not is_inside(target, parts.directory)
        if outside and not Path(source.events).is_absolute():
            message = f"{source.events!r} leads out of the site directory"
            hint = "write an absolute path if that is meant"
            problems.append(section.problem("events", "site.outside", message, hint=hint))
        elif not is_file(target):
            problems.append(_no_events(parts, name, source.events))
    return problems


def check_actions(parts: SiteParts) -> list[Problem]:
    """An action of a policy that `[actions]` does not map is a warning: it would do nothing. Where
    the policy says itself what is done, that is checked with the people.
    """
    known = list(parts.file.section("actions").values)
    problems: list[Problem] = []
    for name, compiled in parts.policies.items():
        faults = Diagnostics(name, parts.texts[name])
        for action in compiled.tree.actions:
            if action.phrase in known or stop_of(action.phrase) is not None or action.delivery:
                continue
            near = nearest_names(action.phrase, known, limit=1)
            hint = f"did you mean {near[0]!r}?" if near else f'add [actions."{action.phrase}"]'
            message = f"the site does not say what to do for {action.phrase!r}"
            faults.add(
                "policy.unmapped_action", message, action.place, hint=hint, severity="warning"
            )
        problems.extend(faults.problems())
    return problems


def check_commands(parts: SiteParts) -> list[Problem]:
    """A policy that an action stops is there."""
    problems: list[Problem] = []
    known, _window, _problems = policy_files(parts.file, parts.directory)
    for name, compiled in parts.policies.items():
        faults = Diagnostics(name, parts.texts[name])
        lint_commands(compiled.tree, known, faults)
        problems.extend(faults.problems())
    return problems


def check_data(parts: SiteParts) -> list[Problem]:
    """Every attribute that a policy reads comes from a source or a table."""
    if parts.tables is None:
        return []
    problems: list[Problem] = []
    for name, compiled in parts.policies.items():
        faults = Diagnostics(name, parts.texts[name])
        for concept, attribute, place in _needed(compiled):
            if not parts.tables.gives(concept, attribute):
                message = f"no table or source gives {concept}.{attribute}"
                hint = f"add a [tables.*] with concept = {concept!r} and a column for {attribute!r}"
                faults.add("policy.no_data", message, place, hint=hint)
        problems.extend(faults.problems())
    return problems


def check_sources(parts: SiteParts) -> list[Problem]:
    """Policies without a push source never see an event. A site may do without either: its channels
    are enough.
    """
    if not parts.texts or parts.file.section("sources"):
        return []
    message = "the site has no source of events, so no policy can fire"
    hint = "add [sources.NAME] with concept, attribute, key and value"
    return [
        parts.file.problem(("sources",), "site.no_sources", message, hint=hint, severity="warning")
    ]


def check_extras(parts: SiteParts) -> list[Problem]:
    """A driver that the site needs and this installation lacks, with the command that brings it."""
    return [
        section.problem(
            key,
            "site.missing_extra",
            f"{what} needs {module}, which is not installed",
            hint=f"pip install 'rapport[{extra}]'",
        )
        for section, key, what in _drivers_needed(parts.file)
        for module, extra in (_EXTRAS[what],)
        if find_spec(module) is None
    ]


CHECKERS: tuple[Checker, ...] = (
    check_known_tables,
    check_extras,
    check_node,
    check_sources,
    check_recorded_events,
    check_actions,
    check_commands,
    check_data,
    check_instances,
    check_chains,
    check_contrary,
    check_similar,
)


_EXTRAS = {
    "MQTT": ("paho", "mqtt"),
    "Apprise": ("apprise", "notify"),
    "NATS": ("nats", "nats"),
    "PostgreSQL": ("psycopg", "postgres"),
}
"""What needs a driver: the module, and the extra of this package that has it."""
_MEDIA = {"mqtt": "MQTT", "apprise": "Apprise"}
_STORES = {"nats": "NATS", "postgres": "PostgreSQL"}


def _drivers_needed(file: TomlFile) -> Iterator[tuple[Section, str, str]]:
    """Where the site asks for something that not every installation has: section, key, what."""
    for _name, bridge in file.section("mqtt").sections():
        yield bridge, "broker", "MQTT"
    for _name, medium in file.section("inputs").sections():
        if what := _MEDIA.get(str(medium.values.get("adapter"))):
            yield medium, "adapter", what
    for _name, peer in file.section("peers").sections():
        addresses = peer.values.get("addresses")
        for address in addresses if isinstance(addresses, list) else ():
            if what := _MEDIA.get(str(address).partition(":")[0]):
                yield peer, "addresses", what
    channels = file.section("channels")
    for section in (channels, *(rule for _name, rule in channels.sections())):
        for key in ("log", "records"):
            if what := _STORES.get(str(section.values.get(key))):
                yield section, key, what


def _no_events(parts: SiteParts, name: str, events: str) -> Problem:
    hint = "replay reads it unless --events names another"
    message = f"there is no file {events!r}"
    section = parts.file.section("sources", name)
    return section.problem("events", "site.no_file", message, hint=hint, severity="warning")


def _needed(compiled: CompiledPolicy) -> list[tuple[str, str, SourceSpan]]:
    """What the plan reads from tables: (concept, attribute, place in the policy), each once."""
    definitions = {definition.alias: definition for definition in compiled.tree.concepts}
    named = first_mentions(compiled.tree.condition)
    needed: dict[tuple[str, str, SourceSpan], None] = {}
    for term in compiled.plan.terms:
        for side, attribute in table_attributes(term):
            place = named.get((side.alias, attribute), definitions[side.alias].place)
            needed[side.concept, attribute, place] = None
        for side in (term.first, term.second):
            definition = definitions[side.alias]
            places = {item.attribute: item.place for item in definition.properties}
            for each in side.constraints:
                place = places.get(each.attribute, definition.place)
                needed[side.concept, each.attribute, place] = None
    return list(needed)
