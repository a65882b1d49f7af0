"""Checks of a site that belong to other rooms: feeds, people, runnable plans. [UX-2, ME-7,
CH-10]"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from rapport.channel.access.admission import check_access as check_access_table
from rapport.channel.backends.local import open_memory
from rapport.channel.config import channels_from_site
from rapport.channel.federation import links_from_site
from rapport.channel.interceptors.builtin import InterceptorContext, Mediate
from rapport.channel.interceptors.builtin import check_interceptors as check_site_interceptors
from rapport.channel.mqtt.bridge import bridges_from_site
from rapport.communication.actions import same_phrase
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
from rapport.communication.message_info import info_from_site
from rapport.communication.message_info_service import content_rules
from rapport.core.errors import InvalidInput, Problem, UnknownName, Unsupported
from rapport.core.urls import address_parts, is_loopback, is_unspecified
from rapport.kernel.clock import SystemClock
from rapport.kernel.plugins import Plugins
from rapport.kernel.settings import load_settings
from rapport.mediation.fields_compiler import check_bindings
from rapport.mediation.reader import build_transformer
from rapport.mediation.source_bindings import RAW_PREFIX, sources_into_channels
from rapport.policy.compiler.normal_form import atoms_of_expression
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.operators.plan_shape import check_supported
from rapport.site.bindings import source_bindings
from rapport.site.context import check_context
from rapport.site.delivering import check_deliveries
from rapport.site.ensemble import check_ensemble
from rapport.site.facts import SiteFacts
from rapport.site.interpreting import (
    meanings_in_site,
    problems_of_meanings,
    problems_of_sources,
    references_of,
)
from rapport.site.on_spark import check_on_spark
from rapport.site.parts import Checker, SiteParts, has_errors
from rapport.site.pipeline import check_pipeline


def check_interpretations(parts: SiteParts) -> list[Problem]:
    """Every interpretation of either form is sound and fits the sources that speak it."""
    tables = parts.tables.columns() if parts.tables is not None else None
    found = meanings_in_site(parts.file, parts.directory, parts.ontology, tables)
    in_force, checks = found.files.activate()
    _into, problems = sources_into_channels(parts.file)
    if tables is not None:
        checks = [*checks, *references_of(found, tables)]
    problems += problems_of_meanings(found, checks, parts.file)
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
        return []  # told by check_channels
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
    found = meanings_in_site(parts.file, parts.directory, parts.ontology)
    try:
        meaning = build_transformer(bindings[source], found.files.activate()[0])
    except InvalidInput:
        return lambda event: (event,)  # told by check_interpretations
    if meaning.may_block:
        raise Unsupported(f"mediating {source!r} in a chain", hint="its conversions are plug-ins")
    return lambda event: (event,)


def check_access(parts: SiteParts) -> list[Problem]:
    """Identities, their rights and keys; secrets that are not here are warnings."""
    return check_access_table(parts.file, parts.directory)


def check_runnable(parts: SiteParts) -> list[Problem]:
    """Every plan can be executed; the reason stands at the policy's first condition."""
    problems: list[Problem] = []
    for name, compiled in parts.policies.items():
        place = next(atoms_of_expression(compiled.tree.condition)).place
        faults = Diagnostics(name, parts.texts[name])
        for reason in check_supported(compiled.plan):
            faults.add("policy.unsupported", reason, place)
        problems.extend(faults.problems())
    return problems


def check_people(parts: SiteParts) -> list[Problem]:
    """Peers, collectives, actions and adapters, and the texts of actions against the policies."""
    phrases = {name: compiled.plan.actions for name, compiled in parts.policies.items()}
    facts = SiteFacts(parts.tables, parts.policies) if parts.tables is not None else None
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
    """Links in messages that leave this machine can be opened by who gets them."""
    try:
        settings = load_settings(parts.file.section("node"), flags={})
    except InvalidInput:
        return []  # told by check_node
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
    """Routing rules, and what is told of messages."""
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
    """What policies say about their own actions; `known` are the fields of each one's aliases."""
    problems: list[Problem] = []
    rules = _content_rules(parts)
    for name, compiled in parts.policies.items():
        faults = Diagnostics(name, parts.texts[name])
        check_deliveries(compiled.tree, people, known[name], faults, rules)
        problems.extend(faults.problems())
    return problems


def _content_rules(parts: SiteParts) -> ContentRules:
    """What contents of messages have to be like, as far as the site file says it."""
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
