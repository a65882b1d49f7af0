"""The ontology and the push sources from a site file, checked for consistency. [PO-1, PO-2]"""

from __future__ import annotations

from rapport.core.errors import Problem, RapportError
from rapport.core.schema import PARTS, TYPE_NAMES, AttributeType
from rapport.kernel.fields import Fields
from rapport.kernel.toml import Section, TomlFile
from rapport.policy import relations
from rapport.policy.language.faults import did_you_mean
from rapport.policy.language.tokens import is_name
from rapport.policy.ontology import Ontology, PushSource, Relationship
from rapport.units.quantities import unit_named

_CONCEPT_KEYS = ("attributes", "units")
_RELATIONSHIP_KEYS = ("between", "function")
_SOURCE_KEYS = (
    "concept",
    "attribute",
    "attributes",
    "type",
    "events",
    "id",
    "time",
    "key",
    "value",
    "interpretation",
    "period",
)

Attributes = dict[str, AttributeType]


def ontology_from_site(file: TomlFile, *, trusted: bool = True) -> tuple[Ontology, list[Problem]]:
    """What a site speaks of, and everything wrong with its declaration; faulty entries are left
    out.

    Args:
        trusted: whether functions of the form `package.module:function` may be imported.
    """
    reader = _OntologyReader(file, trusted)
    concepts = reader.concepts()
    ontology = Ontology(
        concepts=concepts,
        relationships=reader.relationships(concepts),
        sources=reader.sources(concepts),
        units=reader.units,
    )
    reader.table_keys(ontology)
    return ontology, reader.problems


class _OntologyReader:
    """One pass over `[concepts]`, `[relationships]` and `[sources]`."""

    def __init__(self, file: TomlFile, trusted: bool) -> None:
        self.file, self.trusted = file, trusted
        self.problems: list[Problem] = []
        self.faulted: set[tuple[str, str]] = set()
        """Attributes whose declaration was refused; what names them is not refused once more."""
        self.units: dict[str, dict[str, str]] = {}

    def concepts(self) -> dict[str, Attributes]:
        found: dict[str, Attributes] = {}
        if "concepts" not in self.file.values:
            self.problems.append(
                self.file.problem(
                    ("concepts",),
                    "ontology.no_concepts",
                    "the site declares no concepts",
                    hint='add [concepts.room.attributes] with lines such as area = "rectangle"',
                )
            )
        for name, section in self._tables("concepts"):
            fields = Fields(section, self.problems, known=_CONCEPT_KEYS)
            attributes = self._attributes(name, section, fields)
            self.units[name] = self._units(name, section, fields, attributes)
            if self._named(name, section, "attributes", "concept"):
                found[name] = attributes
        return found

    def _attributes(self, concept: str, section: Section, fields: Fields) -> Attributes:
        found: Attributes = {}
        attributes = section.section("attributes")
        if not isinstance(section.values.get("attributes", {}), dict):
            fields.wrong("attributes", "a table", f"[concepts.{concept}.attributes]")
        for name, kind in attributes.values.items():
            if not self._named(name, attributes, name, "attribute"):
                continue
            if kind in TYPE_NAMES:
                found[name] = kind
                continue
            self.faulted.add((concept, name))
            hint = did_you_mean(kind, TYPE_NAMES) if isinstance(kind, str) else ""
            message = f"{concept}.{name} has the unknown type {kind!r}"
            hint = hint or f"types are {', '.join(TYPE_NAMES)}"
            self.problems.append(
                attributes.problem(name, "ontology.unknown_type", message, hint=hint)
            )
        return found

    def _units(
        self, concept: str, section: Section, fields: Fields, attributes: Attributes
    ) -> dict[str, str]:
        """`[concepts.station.units]`: in what unit a number is in root."""
        if not isinstance(section.values.get("units", {}), dict):
            fields.wrong("units", "a table", f"[concepts.{concept}.units]")
        written = section.section("units")
        found: dict[str, str] = {}
        for name, unit in written.values.items():
            if attributes.get(name) != "number":
                message = f"{concept}.{name} is no number, so it has no unit of its own"
                hint = "points and rectangles are in metres" if name in attributes else ""
                hint = hint or did_you_mean(name, attributes)
                self.problems.append(written.problem(name, "ontology.bad_unit", message, hint=hint))
                continue
            try:
                found[name] = unit_named(str(unit)).symbol
            except RapportError as error:
                message = f"{concept}.{name}: {error.message}"
                self.problems.append(
                    written.problem(name, "ontology.bad_unit", message, hint=error.hint)
                )
        return found

    def relationships(self, concepts: dict[str, Attributes]) -> dict[str, Relationship]:
        found: dict[str, Relationship] = {}
        for name, section in self._tables("relationships"):
            fields = Fields(section, self.problems, known=_RELATIONSHIP_KEYS)
            ends = self._between(fields, concepts)
            function = fields.text("function")
            relation = self._relation(fields, function) if function else None
            if not all(is_name(word) for word in name.split()) or not name.strip():
                message = f"{name!r} cannot name a relationship"
                hint = "use words of letters and digits that are no words of the language"
                fields.fault("", "ontology.bad_name", message, hint=hint)
            elif ends and relation and self._types_fit(fields, ends, relation, concepts):
                found[name] = Relationship(name, *ends, function)
        return found

    def _between(
        self, fields: Fields, concepts: dict[str, Attributes]
    ) -> tuple[tuple[str, str], tuple[str, str]] | None:
        given = fields.texts("between")
        if not given:
            return None
        if len(given) != 2:
            hint = 'write between = ["person.position", "room.area"]'
            message = f"'between' names two attributes, not {len(given)}"
            fields.fault("between", "ontology.bad_between", message, hint=hint)
            return None
        ends = [self._end(fields, text, concepts) for text in given]
        return None if ends[0] is None or ends[1] is None else (ends[0], ends[1])

    def _end(
        self, fields: Fields, text: str, concepts: dict[str, Attributes]
    ) -> tuple[str, str] | None:
        concept, dot, attribute = text.partition(".")
        if not dot:
            message = f"{text!r} must be written as concept.attribute"
            fields.fault("between", "ontology.bad_between", message, hint='such as "room.area"')
            return None
        if self._known(fields, "between", concept, attribute, concepts):
            return concept, attribute
        return None

    def _known(
        self,
        fields: Fields,
        key: str,
        concept: str,
        attribute: str,
        concepts: dict[str, Attributes],
        attribute_key: str = "",
    ) -> bool:
        if (concept, attribute) in self.faulted:
            return False
        if concept not in concepts:
            message, hint = f"there is no concept {concept!r}", did_you_mean(concept, concepts)
            fields.fault(key, "ontology.unknown_concept", message, hint=hint)
            return False
        if attribute not in concepts[concept]:
            message = f"the concept {concept!r} has no attribute {attribute!r}"
            hint = did_you_mean(attribute, concepts[concept])
            fields.fault(attribute_key or key, "ontology.unknown_attribute", message, hint=hint)
            return False
        return True

    def _relation(self, fields: Fields, function: str) -> relations.Relation | None:
        if ":" in function and not self.trusted:
            message = f"the function {function!r} is not imported from a site that is not trusted"
            hint = "load the site as trusted, or use a built-in function"
            fields.fault("function", "relations.untrusted", message, hint=hint)
            return None
        try:
            return relations.get(function)
        except RapportError as error:
            fields.report("function", error)
            return None

    def _types_fit(
        self,
        fields: Fields,
        ends: tuple[tuple[str, str], tuple[str, str]],
        relation: relations.Relation,
        concepts: dict[str, Attributes],
    ) -> bool:
        fit = True
        for end, wanted in zip(ends, (relation.first_type, relation.second_type), strict=True):
            given = concepts[end[0]][end[1]]
            if given != wanted:
                fit = False
                shown = f"{'.'.join(end)} is a {given}"
                message = f"the function {relation.name!r} needs a {wanted} here, but {shown}"
                types = f"a {relation.first_type} and a {relation.second_type}"
                hint = f"{relation.name} takes {types}, in this order"
                fields.fault("between", "ontology.wrong_type", message, hint=hint)
        return fit

    def sources(self, concepts: dict[str, Attributes]) -> dict[str, PushSource]:
        found: dict[str, PushSource] = {}
        for name, section in self._tables("sources"):
            if "into" in section.values:
                continue  # speaks of no concept; mediation reads it
            fields = Fields(section, self.problems, known=_SOURCE_KEYS)
            before = len(self.problems)
            source = self._source(name, fields)
            key = "attributes" if source.further else "attribute"
            known = all(
                self._known(fields, "concept", source.concept, attribute, concepts, key)
                for attribute in source.attributes
            )
            if known and not source.further:
                self._value_fits(fields, source, concepts[source.concept][source.attribute])
            faults = self.problems[before:]
            if known and all(problem.severity != "error" for problem in faults):
                found[name] = source
        return found

    def _source(self, name: str, fields: Fields) -> PushSource:
        # With an interpretation it is there that the fields are named; here they serve recorded
        # files only.
        interpretation = fields.text("interpretation", "")
        speaks_root = not interpretation
        attribute, *further = self._given_attributes(fields, interpretation)
        return PushSource(
            name=name,
            concept=fields.text("concept"),
            attribute=attribute,
            further=tuple(further),
            speaks=fields.text("type", ""),
            id=fields.text("id", "id"),
            time=fields.text("time", "time"),
            key=fields.text("key", None if speaks_root else ""),
            value=fields.texts("value", None if speaks_root else ()),
            events=fields.text("events", ""),
            interpretation=interpretation,
            period_ms=fields.duration_ms("period", 0, least=1),
        )

    def _given_attributes(self, fields: Fields, interpretation: str) -> tuple[str, ...]:
        """`attribute`, or several as `attributes`, which takes an interpretation with types."""
        if not fields.has("attributes"):
            return (fields.text("attribute"),)
        several = fields.texts("attributes", example='["temperature", "humidity"]')
        message = ""
        if fields.has("attribute"):
            message = "a source names 'attribute' or 'attributes', not both"
        elif len(several) > 1 and not interpretation:
            message = "a source that gives several attributes needs an interpretation"
        elif len(several) > 1 and fields.has("events"):
            message = "recorded events of a source give one attribute"
        if message:
            hint = "declare one source per attribute, or an interpretation with types"
            fields.fault("attributes", "ontology.bad_attributes", message, hint=hint)
        return several or ("",)

    def _value_fits(self, fields: Fields, source: PushSource, kind: AttributeType) -> None:
        parts = PARTS[kind]
        if source.value and len(source.value) != len(parts):
            example = ", ".join(f'"{part}"' for part in parts)
            message = (
                f"a {kind} has {len(parts)} parts, but 'value' names {len(source.value)} fields"
            )
            fields.fault(
                "value", "ontology.wrong_parts", message, hint=f"such as value = [{example}]"
            )

    def table_keys(self, ontology: Ontology) -> None:
        """An attribute that comes as events can neither be a table's key nor, usefully, one of its
        columns."""
        streams = ontology.streams()
        for name, section in self._tables("tables", quiet=True):
            concept, columns = section.values.get("concept"), section.section("columns")
            for attribute, column in columns.values.items():
                if f"{concept}.{attribute}" not in streams:
                    continue
                if column in (section.values.get("key"), [section.values.get("key")]):
                    message = (
                        f"{concept}.{attribute} comes as events and cannot be the key of {name!r}"
                    )
                    hint = "an identity does not change; choose another attribute"
                    self.problems.append(
                        section.problem("columns", "ontology.key_as_event", message, hint=hint)
                    )
                else:
                    message = (
                        f"{concept}.{attribute} comes as events; the column in {name!r} is not used"
                    )
                    self.problems.append(
                        section.problem(
                            "columns",
                            "ontology.given_twice",
                            message,
                            hint="leave the column or the source out",
                            severity="warning",
                        )
                    )

    def _named(self, name: str, section: Section, key: str, what: str) -> bool:
        if is_name(name):
            return True
        message = f"{name!r} cannot name a {what}".replace("a attribute", "an attribute")
        hint = "use letters, digits, _ and -, beginning with a letter, and no word of the language"
        self.problems.append(section.problem(key, "ontology.bad_name", message, hint=hint))
        return False

    def _tables(self, name: str, *, quiet: bool = False) -> list[tuple[str, Section]]:
        section = self.file.section(name)
        whole = self.file.values.get(name, {})
        if not isinstance(whole, dict) and not quiet:
            self.problems.append(
                self.file.problem(
                    (name,),
                    "site.wrong_type",
                    f"{name!r} must be a table",
                    hint=f"write [{name}.NAME]",
                )
            )
        for key, value in section.values.items():
            if not isinstance(value, dict) and not quiet:
                message = f"{key!r} must be a table"
                hint = f"write [{name}.{key}]"
                self.problems.append(section.problem(key, "site.wrong_type", message, hint=hint))
        return list(section.sections())
