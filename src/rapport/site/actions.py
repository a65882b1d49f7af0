"""Actions of policies in communication's terms, and the facts of tables for message texts. [PO-3,
PO-10, CO-8, CO-1]

Policy and communication are siblings and do not know each other; the site translates. Lines of a
policy take precedence over `[actions]` of the same phrase, line by line, in that policy only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache

import msgspec

from rapport.communication.action_config import people_behind
from rapport.communication.actions import Action, DeclaredActions
from rapport.communication.config import CommunicationConfig, constant_misfit
from rapport.communication.content_rules import ContentRules
from rapport.communication.delivery_state import CollectiveDelivery, NextReceiver, PeerDelivery
from rapport.communication.texts import ALWAYS_KNOWN, named_in_texts, same_phrase, template_fields
from rapport.core.errors import InvalidInput, PolicyError
from rapport.core.message import Identifier
from rapport.policy.compiler.compile import CompiledPolicy, parse_text
from rapport.policy.delivery import DeliveryBlock, Reach, Receiver, Ways, read_delivery
from rapport.policy.language.diagnostics import Diagnostics, did_you_mean
from rapport.policy.language.situation_tree import (
    ParsedPolicy,
    Quantified,
    SituationTree,
    actions_of,
    named_instances,
    tree_nodes,
)
from rapport.policy.language.tree import Action as PolicyAction
from rapport.policy.lifecycle.record import stop_of
from rapport.policy.named_values import (
    DURATION,
    NOTHING_NEEDED,
    NeededValues,
    canonical_phrase,
    moments_of,
    needed_values,
    quantified_concepts,
    vocabulary,
)
from rapport.policy.ontology import Ontology
from rapport.tables.tables import Tables

_REACH: dict[Reach, CollectiveDelivery] = {"anybody": "to-any", "everybody": "to-all-members"}
_WAYS: dict[Ways, PeerDelivery] = {
    "preferred": "preferred",
    "all": "to-all-channels",
    "any": "at-least-one",
}
_NOBODY = Identifier("peer", "")
_ANY_CONTENT = ContentRules({})
_REMEMBERED = 10_000
"""Versions whose actions are remembered."""


class OwnActions:
    """The delivery lines of each version of each policy, parsed once: those of its actions, and
    those of `actions when cleared`.
    """

    def __init__(self, people: CommunicationConfig, text_of: Callable[[str, str], str]) -> None:
        """`text_of` gives the text of a version by policy and version; empty when it is not
        known.
        """
        self._people, self._text_of = people, text_of
        self.of = lru_cache(_REMEMBERED)(self._read)
        """The actions by policy and version; none where the policy leaves all to the site."""

    def use(self, people: CommunicationConfig) -> None:
        """Uses the actions of a reloaded site; not while one is read."""
        self._people = people
        self.of.cache_clear()

    def _read(self, policy: str, version: str) -> DeclaredActions:
        return _actions_in(policy, self._text_of(policy, version), self._people)


def _actions_in(name: str, text: str, people: CommunicationConfig) -> DeclaredActions:
    try:
        tree = parse_text(text, name=name)
    except PolicyError:
        return (
            DeclaredActions()
        )  # what runs was read before; a version nobody knows leaves all to the site
    return _actions_of(tree, people, Diagnostics(name, text))


def _actions_of(
    tree: ParsedPolicy, people: CommunicationConfig, faults: Diagnostics
) -> DeclaredActions:
    def declared(actions: Sequence[PolicyAction]) -> dict[str, Action]:
        return {
            same_phrase(each.phrase): action_from(each.phrase, read_delivery(each, faults), people)
            for each in actions
            if each.delivery
        }

    ends = tree.cleared_actions if isinstance(tree, SituationTree) else ()
    return DeclaredActions(declared(tree.actions), declared(ends))


def action_from(phrase: str, block: DeliveryBlock, people: CommunicationConfig) -> Action:
    """The action as policy and site together say it. A name that nobody has is a peer without an
    address: the ledger then names the missing one.
    """
    options: dict[str, object] = {
        "send_to": identifier_of(block.to, people) if block.to else None,
        "escalate": _escalation(block, people) or None,
        "done_when": "answered" if block.awaits_answer or block.then else None,
        "answer_within_ms": block.answer_within_ms,
        "text": block.say,
        "urgent": block.urgent,
        "ttl_ms": block.until_ms,
        "peer_delivery": _WAYS[block.ways] if block.ways else None,
    }
    how_many = _reach_options(block)
    site = declared_action(phrase, people) or Action(phrase=phrase, send_to=_NOBODY, text="")
    return msgspec.structs.replace(
        site, **{field: value for field, value in options.items() if value is not None}, **how_many
    )


def _escalation(block: DeliveryBlock, people: CommunicationConfig) -> tuple[NextReceiver, ...]:
    named = ((identifier_of(each.receiver, people), each.within_ms) for each in block.then)
    return tuple(NextReceiver(str(receiver), within_ms) for receiver, within_ms in named)


def _reach_options(block: DeliveryBlock) -> dict[str, object]:
    """Options that belong together: a line of the policy replaces all of the site's."""
    options: dict[str, object] = {}
    if block.reach or block.least:
        options |= {"reach": _REACH[block.reach] if block.reach else None, "least": block.least}
    if block.repeat_every_ms is not None:
        options |= {"repeat_every_ms": block.repeat_every_ms, "repeat_most": block.repeat_most}
    return options


def declared_action(phrase: str, people: CommunicationConfig) -> Action | None:
    """The site's action for a phrase; blanks and letter case do not matter."""
    wanted = same_phrase(phrase)
    return next(
        (action for each, action in people.actions.items() if same_phrase(each) == wanted), None
    )


def identifier_of(receiver: Receiver, people: CommunicationConfig) -> Identifier:
    """The receiver; a bare name is a collective before it is a peer."""
    if receiver.kind:
        return Identifier(receiver.kind, receiver.name)
    kind = "collective" if receiver.name in people.collectives else "peer"
    return Identifier(kind, receiver.name)  # type: ignore[arg-type]


# --- checks ---


def check_deliveries(
    tree: ParsedPolicy,
    people: CommunicationConfig,
    known: Collection[str],
    faults: Diagnostics,
    rules: ContentRules = _ANY_CONTENT,
) -> None:
    """Notes receivers that nobody is, texts that ask for what the policy lacks or that `rules`
    never let pass, and actions for which policy and site together are incomplete. `known` are the
    fields of the policy's aliases.
    """
    for action in actions_of(tree):
        if not action.delivery:
            continue
        block = read_delivery(
            action, Diagnostics(tree.name, "")
        )  # its faults were reported by compiling
        for receiver in block.receivers():
            _check_receiver(receiver, people, faults)
        is_end = action not in tree.actions
        names = {name for name in known if _is_named_then(name, tree, is_end=is_end)}
        _check_text(block, tree, {*names, *ALWAYS_KNOWN}, faults)
        _check_whole(action, block, people, faults)
        _check_content(action, block, people, faults, rules)


def _check_receiver(receiver: Receiver, people: CommunicationConfig, faults: Diagnostics) -> None:
    names: dict[str, Collection[str]] = {
        "peer": people.peers,
        "collective": people.collectives,
    }
    wanted = [receiver.kind] if receiver.kind else list(names)
    found = [kind for kind in wanted if receiver.name in names[kind]]
    if not found:
        known = [name for kind in wanted for name in names[kind]]
        faults.add(
            "policy.unknown_receiver",
            f"there is no {' or '.join(wanted)} named {receiver.name!r}",
            receiver.place,
            hint=did_you_mean(receiver.name, known) or "declare it in [peers] or [collectives]",
        )
    elif len(found) > 1:
        faults.add(
            "policy.ambiguous_receiver",
            f"{receiver.name!r} is a peer and a collective",
            receiver.place,
            hint=f"write 'peer {receiver.name}' or 'collective {receiver.name}'",
        )


def _is_named_then(name: str, tree: ParsedPolicy, *, is_end: bool) -> bool:
    """Whether a text can name it at the beginning or at the end: the duration is known at the end,
    and instances of a quantifier when its section is true.
    """
    if name == DURATION:
        return is_end
    if not isinstance(tree, SituationTree):
        return True
    sections = tree.situation, tree.cleared_by
    other, own = (named_instances(one) for one in (sections if is_end else sections[::-1]))
    return not any(
        name == alias or name.startswith(f"{alias}.") or f" of {alias} " in f"{name} "
        for alias in other.keys() - own.keys()
    )


def _why_unnamed(field: str, tree: ParsedPolicy) -> str:
    """Why no text can name an instance that a quantifier binds; empty for other fields."""
    if not isinstance(tree, SituationTree):
        return ""
    for node in tree_nodes(tree):
        if isinstance(node, Quantified) and re.search(rf"(?:^|of ){node.alias}\b", field):
            shown = (
                node.quantifier
                if node.quantifier in ("some", "no")
                else (f"{node.quantifier} {node.number}")
            )
            return f": {node.alias} is of '{shown} {node.concept} {node.alias}', " + (
                "which is not true then, or stands within another part"
                if node.quantifier in ("some", "at least")
                else "which is true of none that could be named"
            )
    return ""


def _check_text(
    block: DeliveryBlock, tree: ParsedPolicy, known: Collection[str], faults: Diagnostics
) -> None:
    try:
        fields = template_fields(block.say or "", known)
    except InvalidInput as error:
        faults.add(error.code, error.message, block.say_place, hint=error.hint)
        return
    for field in fields:
        if canonical_phrase(field, tree) not in known:
            message = f"the text asks for {{{field}}}, which this policy does not have"
            message += _why_unnamed(field, tree)
            hint = named_in_texts(known, field)
            faults.add("action.unknown_field", message, block.say_place, hint=hint)


def _check_content(
    action: PolicyAction,
    block: DeliveryBlock,
    people: CommunicationConfig,
    faults: Diagnostics,
    rules: ContentRules,
) -> None:
    """Faults of the site's own text are reported at the site."""
    if block.say is None:
        return
    misfit = constant_misfit(action_from(action.phrase, block, people), rules)
    if misfit is not None:
        faults.add(misfit.code, misfit.message, block.say_place, hint=misfit.hint)


def _check_whole(
    action: PolicyAction, block: DeliveryBlock, people: CommunicationConfig, faults: Diagnostics
) -> None:
    site = declared_action(action.phrase, people)
    acts = site is not None and site.effect is not None
    if acts or stop_of(action.phrase) is not None:
        message = f"no message is sent for {action.phrase!r}, something is done"
        hint = "leave the lines below it out, or give the message a phrase of its own"
        faults.add("policy.delivery_of_no_message", message, action.delivery[0].place, hint=hint)
        return
    whole = action_from(action.phrase, block, people)
    for is_missing, what, example in (
        (whole.send_to == _NOBODY, "who is notified", "to NAME"),
        (not whole.text, "the text", 'say "..."'),
    ):
        if is_missing:
            message = f"neither policy nor site says {what} for {action.phrase!r}"
            hint = f"add the line: {example}"
            faults.add("policy.incomplete_delivery", message, action.place, hint=hint)
    if whole.escalate and whole.done_when == "answered" and not whole.answer_within_ms:
        message = "nothing says how long to wait for an answer before asking the next"
        hint = "add the line: answer within 60 s"
        faults.add("action.no_deadline", message, action.delivery[0].place, hint=hint)
    _warn_of_numbers(whole, block, people, faults)


def _warn_of_numbers(
    whole: Action, block: DeliveryBlock, people: CommunicationConfig, faults: Diagnostics
) -> None:
    """Numbers that cannot come true; members may join at run time, so they are warnings."""
    most = people_behind(whole.send_to, people.collectives)
    if block.least > most:
        faults.add(
            "action.least_too_many",
            f"{block.least} are needed, but only {most} can be asked",
            block.reach_place,
            hint="ask a larger collective, or for fewer",
            severity="warning",
        )
    within, every = whole.answer_within_ms, block.repeat_every_ms or 0
    if within and every >= within and not whole.escalate:
        faults.add(
            "action.repeat_too_late",
            "the time to answer is over before anything is repeated",
            block.repeat_place,
            hint="repeat sooner, or give more time to answer",
            severity="warning",
        )


FindPolicy = Callable[[str, str], CompiledPolicy | None]
"""By policy and version."""


class TextNeeds:
    """The values that the texts of each version of each policy name: those of its own delivery
    lines, and those of the site's actions.
    """

    def __init__(
        self,
        people: CommunicationConfig,
        own: OwnActions,
        find: FindPolicy,
        ontology: Callable[[], Ontology],
    ) -> None:
        self._people, self._own, self._find, self._ontology = people, own, find, ontology
        self.of = lru_cache(_REMEMBERED)(self._read)
        """What is needed when a detection is made, by policy and version."""

    def use(self, people: CommunicationConfig) -> None:
        self._people = people
        self.of.cache_clear()

    def _read(self, policy: str, version: str) -> NeededValues:
        compiled = self._find(policy, version)
        if compiled is None:
            return NOTHING_NEEDED
        declared = self._own.of(policy, version)
        return _needed(compiled, declared, self._people, self._ontology())


def needed_by_texts(
    compiled: CompiledPolicy, people: CommunicationConfig, ontology: Ontology
) -> NeededValues:
    """The values that the texts of a policy name: those of its own delivery lines, and those of
    the site's actions.
    """
    declared = _actions_of(compiled.tree, people, Diagnostics(compiled.tree.name, ""))
    return _needed(compiled, declared, people, ontology)


def _needed(
    compiled: CompiledPolicy,
    declared: DeclaredActions,
    people: CommunicationConfig,
    ontology: Ontology,
) -> NeededValues:
    tree, fields = compiled.tree, set[str]()
    ends = tree.cleared_actions if isinstance(tree, SituationTree) else ()
    for own, actions in ((declared.begin, tree.actions), (declared.end, ends)):
        for each in actions:
            action = own.get(same_phrase(each.phrase)) or declared_action(each.phrase, people)
            for _key, text in action.texts() if action is not None else ():
                fields.update(template_fields(text))
    return needed_values(fields, compiled, ontology)


class TemplateFacts:
    """Columns of the tables about an alias's concept: `{A.badge}` in the text of an action."""

    def __init__(
        self,
        tables: Tables,
        policies: FindPolicy | Mapping[str, CompiledPolicy],
        ontology: Ontology | None = None,
    ) -> None:
        """`policies`: those of a site, or who knows their versions while they come and go.
        `ontology`: for `fields`.
        """
        self._ontology = ontology
        self._tables, self._policies = tables, policies
        self._columns = _tables_by_column(tables)
        self._revision = tables.revision

    def find(self, policy: str, version: str, alias: str, identity: str, column: str) -> str | None:
        """The text in the column of the row about this identity; None when there is none."""
        concept = self._concepts(policy, version).get(alias, "")
        table = self._by_column().get(concept, {}).get(column)
        return None if table is None else self._tables.lookup(table, identity, column)

    def fields(self, policy: str) -> list[str]:
        """The fields that a text may use of the policy's aliases."""
        found: list[str] = []
        concepts = self._concepts(policy, "")
        for alias, concept in concepts.items():
            found.append(alias)
            found += [f"{alias}.{column}" for column in self._by_column().get(concept, {})]
        compiled = self._compiled(policy, "")
        if compiled is not None and self._ontology is not None:
            known = vocabulary(compiled, self._ontology)
            found += [*moments_of(compiled), *(name for name in known if name not in concepts)]
        return found

    def _concepts(self, policy: str, version: str) -> dict[str, str]:
        """Concepts by alias."""
        compiled = self._compiled(policy, version)
        if compiled is None:
            return {}
        found = {concept.alias: concept.concept for concept in compiled.tree.concepts}
        return found | quantified_concepts(compiled)

    def _compiled(self, policy: str, version: str) -> CompiledPolicy | None:
        known = self._policies
        return known.get(policy) if isinstance(known, Mapping) else known(policy, version)

    def _by_column(self) -> dict[str, dict[str, str]]:
        """By concept and column the table that has it; found anew when tables changed."""
        revision = self._tables.revision
        if self._revision != revision:
            self._columns, self._revision = _tables_by_column(self._tables), revision
        return self._columns


def _tables_by_column(tables: Tables) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    headings = tables.columns()
    for table, declared in tables.declarations().items():
        for column in headings[table] if declared.concept else ():
            found.setdefault(declared.concept, {}).setdefault(column, table)
    return found
