"""`[containers.X]`: what lies in what, level by level; becomes a relationship between any two
levels, decided from the tables. [PO-1]
"""

from __future__ import annotations

from rapport.kernel.fields import Fields
from rapport.policy.declaring.reading import OntologyDraft
from rapport.policy.language.faults import did_you_mean
from rapport.policy.ontology import Derivation, Enclosed, Enclosing, Link, Relationship

_LEVELS_EXAMPLE = 'of = ["room in floor", "floor in building"]'
MOST_LEVELS = 100
_ITSELF = "the thing itself"


def read_containers(
    reading: OntologyDraft,
    declared: dict[str, Relationship],
    derived: dict[str, dict[str, Derivation]],
) -> dict[str, list[Relationship]]:
    """Fills in the containers; returns their relationships, one per pair of levels, and adds the
    columns by which they are decided to `derived`.
    """
    found: dict[str, list[Relationship]] = {}
    for name, section in reading.tables("containers"):
        fields = Fields(section, reading.problems, known=("of",))
        links = _links(reading, fields)
        if not reading.is_phrase(name, fields, "container"):
            continue
        if name in declared:
            message = f"{name!r} is a relationship already"
            hint = "give the container another name"
            fields.fault("", "ontology.duplicate_name", message, hint=hint)
        elif links and not _has_cycle(fields, links):
            reading.containers[name] = links
            found[name] = _relationships(name, links)
            for relationship in found[name]:
                (inner, within), (outer, itself) = relationship.first, relationship.second
                derived.setdefault(inner, {})[within] = Enclosing(name)
                derived.setdefault(outer, {})[itself] = Enclosed()
    return found


def _links(reading: OntologyDraft, fields: Fields) -> tuple[Link, ...]:
    written = fields.texts("of", example='["room in floor", "floor in building"]')
    if len(written) > MOST_LEVELS:
        message = f"a container has at most {MOST_LEVELS} levels, not {len(written):,}"
        fields.fault("of", "ontology.bad_container", message, hint="nest a concept in itself")
        return ()
    if not written and fields.has("of") and fields.is_empty("of"):
        fields.wrong("of", "a list of levels", _LEVELS_EXAMPLE)
    found = [_link(reading, fields, text) for text in written]
    sound = tuple(dict.fromkeys(link for link in found if link is not None))
    return sound if all(found) else ()


def _link(reading: OntologyDraft, fields: Fields, text: str) -> Link | None:
    words = text.split()
    if len(words) != 3 or words[1].casefold() != "in":
        message = f"{text[:40]!r} must be written as one concept in another"
        fields.fault("of", "ontology.bad_container", message, hint=f"write {_LEVELS_EXAMPLE}")
        return None
    inner, dot, attribute = words[0].partition(".")
    outer = words[2]
    attribute = attribute if dot else outer
    for concept in (inner, outer):
        if concept not in reading.concepts:
            _faulted_concept(reading, fields, concept)
            return None
    if not reading.is_known(fields, "of", inner, attribute):
        return None
    if reading.type_of((inner, attribute)) != "text":
        message = f"{inner}.{attribute} must be a text that names the {outer}, to say in which"
        hint = f"declare it as text, or name another: {inner}.NAME in {outer}"
        fields.fault("of", "ontology.wrong_type", message, hint=hint)
        return None
    return Link(inner, attribute, outer)


def _faulted_concept(reading: OntologyDraft, fields: Fields, concept: str) -> None:
    if concept in reading.refused:
        return
    general = reading.concepts_of(concept)
    hint = did_you_mean(concept, reading.concepts)
    message = f"there is no concept {concept!r}"
    if general:
        message = f"{concept!r} is no concept of its own, so nothing lies in it"
        hint = f"write {' or '.join(general)}"
    fields.fault("of", "ontology.unknown_concept", message, hint=hint)


def _outer_of(links: tuple[Link, ...]) -> dict[str, list[str]]:
    """Of each concept those in which it lies directly."""
    found: dict[str, list[str]] = {}
    for link in links:
        found.setdefault(link.inner, []).append(link.outer)
    return found


def _reachable(start: str, outer_of: dict[str, list[str]]) -> list[str]:
    """Everything around a concept, nearest first."""
    found: dict[str, None] = {}
    waiting = list(outer_of.get(start, ()))
    while waiting:
        concept = waiting.pop(0)
        if concept not in found:
            found[concept] = None
            waiting.extend(outer_of.get(concept, ()))
    return list(found)


def _has_cycle(fields: Fields, links: tuple[Link, ...]) -> bool:
    """A concept may lie in itself (`area in area`), but two not in each other."""
    further = tuple(link for link in links if link.inner != link.outer)
    outer_of = _outer_of(further)
    for concept in outer_of:
        if concept in _reachable(concept, outer_of):
            message = f"{concept!r} lies in the end in itself"
            hint = f"leave one of the levels out; `{concept} in {concept}` nests to any depth"
            fields.fault("of", "ontology.cycle", message, hint=hint)
            return True
    return False


def _relationships(name: str, links: tuple[Link, ...]) -> list[Relationship]:
    outer_of = _outer_of(links)
    return [
        Relationship(name, (inner, f"all around by {name!r}"), (outer, _ITSELF), "contained")
        for inner in outer_of
        for outer in _reachable(inner, outer_of)
    ]
