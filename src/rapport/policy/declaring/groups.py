"""`[groups.X]`: several concepts under one name. Of one general concept they are a kind that
policies can speak of; of several they can stand in relationships. [PO-1]
"""

from __future__ import annotations

from rapport.kernel.fields import Fields
from rapport.policy.declaring.reading import OntologyDraft
from rapport.policy.language.faults import did_you_mean
from rapport.policy.ontology import AnyOf, Derivation, Kind
from rapport.policy.plan import Constraint

Alternatives = tuple[tuple[Constraint, ...], ...]

MOST_ALTERNATIVES = 1_000


def read_groups(reading: OntologyDraft) -> dict[str, dict[str, Derivation]]:
    """Fills in groups and their kinds; returns the columns by which members are known."""
    waiting: dict[str, tuple[Fields, tuple[str, ...]]] = {}
    for name, section in reading.tables("groups"):
        fields = Fields(section, reading.problems, known=("of",))
        members = fields.texts("of", example='["employee", "contractor"]')
        if _is_new(reading, name, fields) and reading.named(name, section, "of", "group"):
            waiting[name] = (fields, tuple(dict.fromkeys(members)))
        else:
            reading.refused.add(name)
    derived: dict[str, dict[str, Derivation]] = {}
    members_of: dict[str, Alternatives] = {}
    while waiting:
        ready = [name for name, (_, of) in waiting.items() if not waiting.keys() & set(of)]
        for name in ready or list(waiting):
            fields, members = waiting.pop(name)
            if not ready:
                _report_group_cycle(reading, name, fields)
            elif _members_known(reading, name, fields, members):
                reading.add_group(name, members)
                members_of[name] = _alternatives(reading, members, members_of)
                _add_kind(reading, name, fields, members_of[name], derived)
    return derived


def _is_new(reading: OntologyDraft, name: str, fields: Fields) -> bool:
    if name not in reading.concepts and name not in reading.kinds:
        return True
    message = f"{name!r} is a concept already"
    fields.fault("", "ontology.duplicate_name", message, hint="give the group another name")
    return False


def _report_group_cycle(reading: OntologyDraft, name: str, fields: Fields) -> None:
    reading.refused.add(name)
    message = f"the group {name!r} is in the end a member of itself"
    fields.fault("of", "ontology.cycle", message, hint="leave one of the groups out")


def _members_known(
    reading: OntologyDraft, name: str, fields: Fields, members: tuple[str, ...]
) -> bool:
    if not members and fields.is_empty("of") and fields.has("of"):
        fields.wrong("of", "a list of concepts", 'of = ["employee", "contractor"]')
    unknown = [member for member in members if not reading.concepts_of(member)]
    for member in unknown:
        if member not in reading.refused:
            message, hint = f"there is no concept {member!r}", did_you_mean(member, reading.names())
            fields.fault("of", "ontology.unknown_concept", message, hint=hint)
    if not members or unknown:
        reading.refused.add(name)
        return False
    return True


def _add_kind(
    reading: OntologyDraft,
    name: str,
    fields: Fields,
    alternatives: Alternatives,
    derived: dict[str, dict[str, Derivation]],
) -> None:
    concepts = reading.concepts_of(name)
    if len(concepts) > 1:
        return
    if len(alternatives) > MOST_ALTERNATIVES:
        message = f"the group {name!r} has {len(alternatives):,} members"
        hint = f"at most {MOST_ALTERNATIVES:,}; tell them by an attribute of their own"
        fields.fault("of", "ontology.too_many_members", message, hint=hint)
    elif () in alternatives:
        reading.kinds[name] = Kind(name, concepts[0])
    elif len(alternatives) == 1:
        reading.kinds[name] = Kind(name, concepts[0], alternatives[0])
    else:
        attribute = f"is {name}"
        derived.setdefault(concepts[0], {})[attribute] = AnyOf(alternatives)
        reading.kinds[name] = Kind(name, concepts[0], (Constraint(attribute, "=", "yes"),))


def _alternatives(
    reading: OntologyDraft, members: tuple[str, ...], members_of: dict[str, Alternatives]
) -> Alternatives:
    """The constraints of each member, those of a group one by one, each once."""
    found: dict[tuple[Constraint, ...], None] = {}
    for member in members:
        if member in members_of:
            found.update(dict.fromkeys(members_of[member]))
        else:
            kind = reading.kinds.get(member)
            found[kind.constraints if kind else ()] = None
    return tuple(found)
