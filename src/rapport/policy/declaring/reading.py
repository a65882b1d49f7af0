"""What the readers of an ontology's tables share: the file, the faults, and which names there are.
[PO-1]
"""

from __future__ import annotations

from rapport.core.errors import Problem
from rapport.core.schema import AttributeType
from rapport.kernel.fields import Fields
from rapport.kernel.toml import Section, TomlFile
from rapport.policy.language.faults import did_you_mean
from rapport.policy.language.tokens import is_name
from rapport.policy.ontology import Kind, Link

Attributes = dict[str, AttributeType]
AttributeEnd = tuple[str, str]
"""A concept and one of its attributes."""

IDENTITY = "id"
"""Stands for the identity wherever an attribute is named."""


class OntologyDraft:
    """One pass over the ontology of a file; each reader adds what it found."""

    def __init__(self, file: TomlFile, trusted: bool) -> None:
        self.file, self.trusted = file, trusted
        zone = file.section("site").values.get("zone")
        self.site_zone = zone if isinstance(zone, str) else ""
        self.problems: list[Problem] = []
        self.faulted: set[AttributeEnd] = set()
        """Attributes whose declaration was refused; what names them is not refused once more."""
        self.refused: set[str] = set()
        """The same for concepts and groups."""
        self.concepts: dict[str, Attributes] = {}
        self.units: dict[str, dict[str, str]] = {}
        self.kinds: dict[str, Kind] = {}
        self.parents: dict[str, str] = {}
        self.groups: dict[str, tuple[str, ...]] = {}
        self._concepts_of_groups: dict[str, tuple[str, ...]] = {}
        self.containers: dict[str, tuple[Link, ...]] = {}

    def concepts_of(self, name: str) -> tuple[str, ...]:
        """The plain concepts that a concept, a specialised one or a group stands for; none when
        there is no such name.
        """
        if name in self.concepts:
            return (name,)
        if name in self.kinds:
            return (self.kinds[name].concept,)
        return self._concepts_of_groups.get(name, ())

    def add_group(self, name: str, members: tuple[str, ...]) -> None:
        """A group whose members are known; what they stand for is found once, not at every
        question, so that groups of groups cost no more than their number.
        """
        found = (concept for member in members for concept in self.concepts_of(member))
        self.groups[name], self._concepts_of_groups[name] = members, tuple(dict.fromkeys(found))

    def names(self) -> list[str]:
        """Every name of a concept, a specialised one, or a group."""
        return list(dict.fromkeys([*self.concepts, *self.kinds, *self.groups]))

    def ends(self, fields: Fields, key: str, text: str, *, example: str) -> list[AttributeEnd]:
        """`room.area` as an end, several for a group of several concepts; none with a fault."""
        concept, dot, attribute = text.partition(".")
        if not dot:
            message = f"{text!r} must be written as concept.attribute"
            fields.fault(key, f"ontology.bad_{key}", message, hint=f'such as "{example}"')
            return []
        if not self.is_known(fields, key, concept, attribute):
            return []
        return [(each, attribute) for each in self.concepts_of(concept)]

    def is_known(
        self, fields: Fields, key: str, concept: str, attribute: str, attribute_key: str = ""
    ) -> bool:
        """Whether there is such an attribute of everything the name stands for; faults if not."""
        if concept in self.refused:
            return False
        concepts = self.concepts_of(concept)
        if not concepts:
            message = f"there is no concept {concept!r}"
            hint = did_you_mean(concept, self.names())
            fields.fault(key, "ontology.unknown_concept", message, hint=hint)
            return False
        for each in concepts:
            if (each, attribute) in self.faulted:
                return False
            if attribute not in self.concepts[each] and attribute != IDENTITY:
                message = f"the concept {each!r} has no attribute {attribute!r}"
                hint = did_you_mean(attribute, self.concepts[each])
                fields.fault(attribute_key or key, "ontology.unknown_attribute", message, hint=hint)
                return False
        return True

    def type_of(self, end: AttributeEnd) -> AttributeType:
        """The type of a known attribute; an identity is a text."""
        return "text" if end[1] == IDENTITY else self.concepts[end[0]][end[1]]

    def named(self, name: str, section: Section, key: str, what: str) -> bool:
        """Whether policies could write the name; a fault if not."""
        if is_name(name):
            return True
        message = f"{name!r} cannot name a {what}".replace("a attribute", "an attribute")
        hint = "use letters, digits, _ and -, beginning with a letter, and no word of the language"
        self.problems.append(section.problem(key, "ontology.bad_name", message, hint=hint))
        return False

    def is_phrase(self, name: str, fields: Fields, what: str) -> bool:
        """Whether policies could write the name of several words; a fault if not."""
        if name.strip() and all(is_name(word) for word in _ended(name.split())):
            return True
        message = f"{name!r} cannot name a {what}"
        hint = "use words of letters and digits that are no words of the language"
        fields.fault("", "ontology.bad_name", message, hint=hint)
        return False

    def tables(self, name: str, *, quiet: bool = False) -> list[tuple[str, Section]]:
        """The tables `[name.*]`; what is none is a fault, unless another reader told of it."""
        section = self.file.section(name)
        whole = self.file.values.get(name, {})
        if not isinstance(whole, dict) and not quiet:
            message, hint = f"{name!r} must be a table", f"write [{name}.NAME]"
            self.problems.append(self.file.problem((name,), "site.wrong_type", message, hint=hint))
        for key, value in section.values.items():
            if not isinstance(value, dict) and not quiet:
                message, hint = f"{key!r} must be a table", f"write [{name}.{key}]"
                self.problems.append(section.problem(key, "site.wrong_type", message, hint=hint))
        return list(section.sections())


def _ended(words: list[str]) -> list[str]:
    """Without a last `of`: `part of` is how a policy reads it anyway."""
    return words[:-1] if len(words) > 1 and words[-1].casefold() == "of" else words
