"""Checks of a whole site that no single package can make, and lint over all policies. [UX-2, ME-7,
CH-10, PO-12]

Lint compares policies with the tables, with each other and with the actions. Its findings are
warnings and hints: a site with them runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rapport.channel.access.identities import check_access as check_access_table
from rapport.channel.backends.local import open_memory
from rapport.channel.config import channels_from_site
from rapport.channel.federation import links_from_site
from rapport.channel.interceptors.builtin import InterceptorContext, Mediate
from rapport.channel.interceptors.builtin import check_interceptors as check_site_interceptors
from rapport.channel.mqtt.bridge import bridges_from_site
from rapport.communication.adapters.adapter_config import adapter_names
from rapport.communication.config import (
    CommunicationConfig,
    arrivals_from_site,
    check_constant_texts,
    communication_from_site,
    engines_from_site,
    services_from_site,
)
from rapport.communication.config import check_actions as check_action_texts
from rapport.communication.content_rules import ContentRules
from rapport.communication.message_info import content_rules, info_from_site
from rapport.communication.texts import same_phrase
from rapport.core.errors import InvalidInput, Problem, UnknownName, Unsupported, nearest_names
from rapport.core.urls import address_parts, is_loopback, is_unspecified
from rapport.kernel.clock import SystemClock
from rapport.kernel.config_fields import Fields
from rapport.kernel.files import is_file, is_inside
from rapport.kernel.plugins import Plugins
from rapport.kernel.settings import check_settings, load_settings
from rapport.kernel.toml import Section, TomlFile
from rapport.mediation.fields_compiler import check_bindings
from rapport.mediation.reader import build_transformer
from rapport.mediation.source_bindings import RAW_PREFIX, sources_into_channels
from rapport.policy.compiler.compile import (
    CompiledConditions,
    CompiledPolicy,
    CompiledSituation,
)
from rapport.policy.compiler.normal_form import atoms_of_expression
from rapport.policy.compiler.scope import first_mentions, table_attributes
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.situation_tree import (
    actions_of,
)
from rapport.policy.language.tree import Action, SourceSpan
from rapport.policy.lifecycle.record import lint_commands, stop_of
from rapport.policy.lint.instances import (
    TableCandidates,
    lint_bound_instances,
    lint_instances,
    lint_lookups,
)
from rapport.policy.lint.policy_set import (
    CONTRARY,
    ActionStatement,
    Effect,
    Pair,
    action_statements,
    contrary_to,
    effect_of,
    exclude_each_other,
    nearly_equal,
    policy_graph,
    shortest_cycle,
)
from rapport.policy.operators.plan_shape import check_supported
from rapport.policy.plan import Plan
from rapport.site.actions import TemplateFacts, check_deliveries
from rapport.site.context import check_context
from rapport.site.ensemble import check_ensemble
from rapport.site.interpretations import (
    interpretation_problems,
    interpretations_in_site,
    problems_of_sources,
    references_of,
    source_bindings,
)
from rapport.site.parts import Checker, SiteParts, has_errors
from rapport.site.pipeline import check_pipeline
from rapport.site.policies import check_on_spark, policy_files
from rapport.site.situation_checks import (
    check_days,
    check_kept,
    needed_by_guard,
    needed_by_situation,
)


def check_interpretations(parts: SiteParts) -> list[Problem]:
    """Every interpretation of either form is sound and fits the sources that speak it."""
    tables = parts.tables.columns() if parts.tables is not None else None
    found = interpretations_in_site(parts.file, parts.directory, parts.ontology, tables)
    in_force, checks = found.files.activate()
    _into, problems = sources_into_channels(parts.file)
    if tables is not None:
        checks = [*checks, *references_of(found, tables)]
    problems += interpretation_problems(found, checks, parts.file)
    bindings = source_bindings(parts.ontology, parts.file).values()
    # A source whose interpretation is faulty has its problem already.
    plain = [
        binding
        for binding in bindings
        if binding.concept and binding.interpretation in ("", *in_force.fields)
    ]
    return [
        *problems,
        *check_bindings(plain, in_force.fields, parts.file),
        *problems_of_sources(bindings, in_force, parts.file),
    ]


def check_channels(parts: SiteParts) -> list[Problem]:
    """Every rule for channels, every link and every bridge can be followed."""
    readers = (channels_from_site, links_from_site, bridges_from_site)
    problems = [problem for read in readers for problem in read(parts.file)[1]]
    return [*problems, *_unknown_mqtt_sources(parts)]


def _unknown_mqtt_sources(parts: SiteParts) -> Iterator[Problem]:
    """Messages for a source that the site does not declare are quarantined: a warning."""
    sources = parts.file.section("sources").values
    if parts.file.section("site").values.get("open_sources") is True:
        return
    for bridge in bridges_from_site(parts.file)[0]:
        for incoming in bridge.incoming:
            is_raw = incoming.channel == f"{RAW_PREFIX}{incoming.source}"
            if is_raw and incoming.source and incoming.source not in sources:
                error = UnknownName(
                    "source", incoming.source, list(sources), hint="declare it: [sources.NAME]"
                )
                yield parts.file.problem(
                    ("mqtt", bridge.name, "in"),
                    "mqtt.unknown_source",
                    f"{error.message}: its messages are quarantined",
                    hint=error.hint,
                    severity="warning",
                )


def check_interceptors(parts: SiteParts) -> list[Problem]:
    """Every interceptor of a channel can be made; they are made here on channels in memory."""
    declared, problems = channels_from_site(parts.file)
    if has_errors(problems):
        return []  # reported by check_channels
    clock = SystemClock()
    workshop = InterceptorContext(
        channels=open_memory(clock),
        clock=clock,
        addresses=declared.push_to,
        mediator=lambda source: _mediator(parts, source),
    )
    return check_site_interceptors(declared, parts.file, workshop)


def _mediator(parts: SiteParts, source: str) -> Mediate:
    """Stands for the mediation of a source; raises where the node would refuse it at its start."""
    bindings = source_bindings(parts.ontology, parts.file)
    if source not in bindings:
        raise UnknownName("source with an interpretation", source, list(bindings))
    found = interpretations_in_site(parts.file, parts.directory, parts.ontology)
    try:
        meaning = build_transformer(bindings[source], found.files.activate()[0])
    except InvalidInput:
        return lambda event: (event,)  # reported by check_interpretations
    if meaning.may_block:
        raise Unsupported(f"mediating {source!r} in a chain", hint="its conversions are plug-ins")
    return lambda event: (event,)


def check_access(parts: SiteParts) -> list[Problem]:
    """Identities, their rights and keys; secrets that are not here are warnings."""
    return check_access_table(parts.file, parts.directory)


def check_runnable(parts: SiteParts) -> list[Problem]:
    """Every plan can be executed; the reason stands at the policy's first condition."""
    problems: list[Problem] = []
    for name, compiled in _with_conditions(parts).items():
        place = next(atoms_of_expression(compiled.tree.condition)).place
        faults = Diagnostics(name, parts.texts[name])
        for reason in check_supported(compiled.plan):
            faults.add("policy.unsupported", reason, place)
        problems.extend(faults.problems())
    return problems


def check_people(parts: SiteParts) -> list[Problem]:
    """Peers, collectives, actions and adapters, and the texts of actions against the policies."""
    phrases = {
        name: tuple(action.phrase for action in actions_of(compiled.tree))
        for name, compiled in parts.policies.items()
    }
    facts = (
        TemplateFacts(parts.tables, parts.policies, parts.ontology)
        if parts.tables is not None
        else None
    )
    known = {name: facts.fields(name) for name in parts.policies} if facts is not None else {}
    people, problems = communication_from_site(
        parts.file,
        parts.directory,
        adapters=adapter_names(Plugins()),
        named=_named_by_phrase(phrases, known),
    )
    problems += arrivals_from_site(parts.file)[1]
    problems += engines_from_site(parts.file)[1]
    if facts is None:
        return problems
    problems += check_constant_texts(parts.file, people.actions, _content_rules(parts))
    problems += check_own_actions(parts, people, known)
    return problems + check_action_texts(parts.file, people, phrases, known)


def _named_by_phrase(
    phrases: Mapping[str, Collection[str]], known: Mapping[str, Collection[str]]
) -> dict[str, Collection[str]]:
    """What the texts of an action can name: what all policies have that use its phrase."""
    found: dict[str, Collection[str]] = {}
    for policy, used in phrases.items():
        for phrase in map(same_phrase, used):
            own = known.get(policy, ())
            found[phrase] = [name for name in own if name in found.get(phrase, own)]
    return found


def check_links(parts: SiteParts) -> list[Problem]:
    """Warns of links in messages that receivers on other machines could not open."""
    try:
        settings = load_settings(parts.file.section("node"), flags={})
    except InvalidInput:
        return []  # reported by check_node
    url = settings.public_url or settings.local_url()
    host = address_parts(url).hostname or ""
    is_here_only = is_loopback(host) and not settings.public_url
    if not is_here_only and not is_unspecified(host):
        return []
    people, problems = communication_from_site(
        parts.file, parts.directory, adapters=adapter_names(Plugins())
    )
    outside = {} if has_errors(problems) else people.linked_outside()
    for name, address in outside.items():
        others = f" and {len(outside) - 1} more" if len(outside) > 1 else ""
        message = (
            f"{name!r}{others} cannot open the links to answer: those in messages by "
            f"{address.partition(':')[0]} would begin with {url}"
        )
        hint = 'write public_url = "https://..." in [node]: the address by which people reach it'
        place = ("peers", name, "addresses")
        return [parts.file.problem(place, "site.links_here_only", message, hint=hint)]
    return []


def check_services(parts: SiteParts) -> list[Problem]:
    """Routing rules and message information."""
    section = parts.file.section
    _declared, problems = services_from_site(
        parts.file,
        parts.directory,
        peers=list(section("peers").values),
        collectives=list(section("collectives").values),
    )
    return problems


def check_own_actions(
    parts: SiteParts, people: CommunicationConfig, known: Mapping[str, Collection[str]]
) -> list[Problem]:
    """Delivery lines of policies; `known` are the fields of each one's aliases."""
    problems: list[Problem] = []
    rules = _content_rules(parts)
    for name, compiled in parts.policies.items():
        faults = Diagnostics(name, parts.texts[name])
        check_deliveries(compiled.tree, people, known[name], faults, rules)
        problems.extend(faults.problems())
    return problems


def _content_rules(parts: SiteParts) -> ContentRules:
    """The content rules of the site file."""
    return content_rules(info_from_site(parts.file, parts.directory)[0])


ROOM_CHECKERS: tuple[Checker, ...] = (
    check_channels,
    check_interceptors,
    check_access,
    check_interpretations,
    check_runnable,
    check_on_spark,
    check_pipeline,
    check_people,
    check_links,
    check_services,
    check_context,
    check_ensemble,
)

REFUSING_THEMSELVES: tuple[Checker, ...] = (check_interpretations, check_links)
"""Their errors refuse only what they are about: a node starts all the same, and holds back what is
said in a faulty interpretation. Its address may also be said when it starts.
"""


_SHOWN = 3
"""Others that one hint names."""
Said = tuple[str, Action]
"""A policy and one of its actions."""


def check_instances(parts: SiteParts) -> list[Problem]:
    """Properties that nobody has, policies that for want of instances never fire, and instances
    that a table of pairs leaves out.
    """
    if parts.tables is None:
        return []
    problems: list[Problem] = []
    candidates = TableCandidates(parts.tables, parts.tables.context_attributes())
    for name, compiled in parts.policies.items():
        faults = Diagnostics(name, parts.texts[name])
        if isinstance(compiled, CompiledSituation):
            lint_bound_instances(compiled.tree, compiled.plan, candidates, faults)
        else:
            lint_instances(compiled.tree, compiled.plan, candidates, faults)
            lint_lookups(compiled.tree, compiled.plan, parts.tables, faults)
        problems += faults.problems()
    return problems


def check_chains(parts: SiteParts) -> list[Problem]:
    """Policies whose actions set them off again, and policies that stop each other."""
    found = _Findings(parts)
    effects = _effects(parts)
    leads = policy_graph({name: each.plan for name, each in parts.policies.items()}, effects)
    for name in parts.policies:
        way = shortest_cycle(name, leads)
        if not way:
            continue
        phrase = _leading(effects[name], leads, parts, way[1])
        found.warn(
            (name, _action(parts, name, phrase)),
            "policy.chain",
            f"this can go round for ever: {' -> '.join(way)}",
            hint="narrow one of the conditions; a chain ends after `most_hops` actions",
        )
    stops = {name: _stops(parts, name) for name in parts.policies}
    for name in parts.policies:
        for other, action in stops[name].items():
            if other < name and name in stops.get(other, {}):
                message = f"{other} and {name} stop each other: the first to fire stays alone"
                found.warn((name, action), "policy.stop_each_other", message, severity="hint")
    return found.problems()


def check_contrary(parts: SiteParts) -> list[Problem]:
    """Contrary actions on one target, in one policy or in two whose conditions can hold together;
    of each action the first it is contrary to.
    """
    pairs, problems = contrary_pairs(parts)
    found = _Findings(parts)
    before: dict[ActionStatement, Said] = {}
    for name, compiled in parts.policies.items():
        for action in compiled.tree.actions:
            stated = action_statements(action.phrase, pairs)
            first = next((one for one in stated if contrary_to(one) in before), None)
            if first is not None:
                _report_contrary(parts, before[contrary_to(first)], (name, action), first, found)
            for one in stated:
                before.setdefault(one, (name, action))
    return [*problems, *found.problems()]


def check_similar(parts: SiteParts) -> list[Problem]:
    """Nearly equal policies; one hint per policy."""
    found = _Findings(parts)
    plans = {name: compiled.plan for name, compiled in _with_conditions(parts).items()}
    for name, others in nearly_equal(plans).items():
        shown = ", ".join(sorted(one.policy for one in others)[:_SHOWN])
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        found.warn(
            (name, parts.policies[name].tree.actions[0]),
            "policy.similar",
            f"{name} says nearly the same as {shown}{more}",
            hint=f"see them side by side: rapport policy similar {name}",
            severity="hint",
        )
    return found.problems()


def contrary_pairs(parts: SiteParts) -> tuple[tuple[Pair, ...], list[Problem]]:
    """The table of contrary words, after the site's own `[contrary] pairs`."""
    problems: list[Problem] = []
    section = parts.file.section("contrary")
    fields = Fields(section, problems, known=("pairs",))
    own: list[Pair] = []
    given = section.values.get("pairs", [])
    for pair in given if isinstance(given, list) else [given]:
        if isinstance(pair, list) and len(pair) == 2 and all(_is_text(word) for word in pair):
            own.append((pair[0], pair[1]))
        else:
            hint = 'such as pairs = [["let in", "evict"]]'
            fields.fault("pairs", "site.bad_pairs", "a pair is a list of two texts", hint=hint)
    return (*own, *CONTRARY), problems


def _report_contrary(
    parts: SiteParts, first: Said, second: Said, saying: ActionStatement, found: _Findings
) -> None:
    (one, action), (other, last) = first, second
    about = f" of {saying.target!r}" if saying.target else ""
    if one == other:
        message = f"{action.phrase!r} and {last.phrase!r} are contrary, and both are done at once"
        found.warn(second, "policy.contrary_actions", message, hint="leave one out")
        return
    message = f"{last.phrase!r} here and {action.phrase!r} in {one} say contrary things{about}"
    plans = [parts.policies[name].plan for name in (one, other)]
    known = [plan for plan in plans if isinstance(plan, Plan)]
    concept = exclude_each_other(*known) if len(known) == len(plans) else ""
    if concept:
        hint = f"both hold together only for two different instances of {concept}"
        found.warn(second, "policy.contrary_actions", message, hint=hint, severity="hint")
    else:
        hint = "both conditions can hold at the same time; say which goes before, or part them"
        found.warn(second, "policy.contrary_actions", message, hint=hint)


def _effects(parts: SiteParts) -> dict[str, list[Effect]]:
    """What the actions of each policy do."""
    stated: Mapping[str, Any] = parts.file.section("actions").values
    known = {_same(phrase): what for phrase, what in stated.items() if isinstance(what, dict)}
    return {
        name: [
            effect_of(one.phrase, known.get(_same(one.phrase), {}), parts.ontology)
            for one in actions_of(compiled.tree)
        ]
        for name, compiled in parts.policies.items()
    }


def _leading(
    effects: list[Effect], leads: Mapping[str, set[str]], parts: SiteParts, other: str
) -> str:
    """The action by which a policy sets another off."""
    plan = {other: parts.policies[other].plan}
    return next(one.phrase for one in effects if policy_graph(plan, {other: [one]})[other])


def _action(parts: SiteParts, name: str, phrase: str) -> Action:
    actions = actions_of(parts.policies[name].tree)
    return next(one for one in actions if one.phrase == phrase)


def _stops(parts: SiteParts, name: str) -> dict[str, Action]:
    """The policies that a policy stops."""
    actions = actions_of(parts.policies[name].tree)
    return {stop.policy: one for one in actions if (stop := stop_of(one.phrase)) is not None}


def _same(phrase: str) -> str:
    return " ".join(phrase.split()).casefold()


def _is_text(word: object) -> bool:
    return isinstance(word, str) and bool(word.strip())


class _Findings:
    """Problems at actions of policies."""

    def __init__(self, parts: SiteParts) -> None:
        self._faults = {name: Diagnostics(name, text) for name, text in parts.texts.items()}

    def warn(
        self, stated: Said, code: str, message: str, *, hint: str = "", severity: Any = "warning"
    ) -> None:
        name, action = stated
        self._faults[name].add(code, message, action.place, hint=hint, severity=severity)

    def problems(self) -> list[Problem]:
        return [problem for faults in self._faults.values() for problem in faults.problems()]


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
    """A table of the file that no package reads is a warning with the nearest known one."""
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
        for action in actions_of(compiled.tree):
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
    """Policies without a push source never receive an event. A site may have neither: its channels
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
    check_days,
    check_kept,
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
    if isinstance(compiled, CompiledSituation):
        return needed_by_situation(compiled)
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
    needed |= dict.fromkeys(needed_by_guard(compiled))
    return list(needed)


def _with_conditions(parts: SiteParts) -> dict[str, CompiledConditions]:
    """The policies with `conditions`."""
    found = parts.policies.items()
    return {name: each for name, each in found if isinstance(each, CompiledConditions)}
