"""The conversions of one interpretation from their table. [ME-4, ME-10]"""

from __future__ import annotations

from collections.abc import Mapping

from rapport.kernel.config_fields import Fields, suggest
from rapport.mediation.declaring.conversion_forms import KINDS, OWN_KEYS
from rapport.mediation.declaring.tree import CODES, fields_of
from rapport.mediation.declaring.type_forms import TypeNames
from rapport.mediation.model.conversions import Conversion, How, Identity, UnitChange
from rapport.mediation.model.types import TypeRef


class Workbench:
    """Reads the conversions of one interpretation; those named by a chain are read when needed."""

    def __init__(
        self, table: Fields | None, names: TypeNames, above: Mapping[str, Conversion]
    ) -> None:
        self.names = names
        self._table, self._above = table, above
        self._found: dict[str, Conversion | None] = {}

    def all(self) -> tuple[Conversion, ...]:
        """In the order of the file, without faulty ones."""
        if self._table is None:
            return ()
        found = [self.own(name) for name in self._table.section.values]
        return tuple(each for each in found if each is not None)

    def own(self, name: str) -> Conversion | None:
        """One of this table; None while it is being read, or when it is faulty."""
        if self._table is not None and name not in self._found:
            self._found[name] = None
            self._found[name] = self._read(self._table, name)
        return self._found.get(name)

    def named(self, fields: Fields, key: str, name: str) -> Conversion | None:
        """A step of a chain: of this table or of a parent's; anything else is a fault."""
        known = (*(self._table.section.values if self._table else ()), *self._above)
        if name not in known:
            message = f"there is no conversion {name[:60]!r}"
            fields.fault(key, "rule.unknown_conversion", message, hint=suggest(name, known))
            return None
        if self._table is None or name not in self._table.section.values:
            return self._above[name]
        begun = name in self._found
        found = self.own(name)
        if found is None and begun:
            message = f"the step {name[:60]!r} leads back to itself, or has a fault"
            hint = "a chain is made of other conversions"
            fields.fault(key, "conversion.signature", message, hint=hint)
        return found

    def _read(self, table: Fields, name: str) -> Conversion | None:
        value = table.section.values[name]
        if not isinstance(value, dict):
            table.wrong(name, "a table", f'{name} = {{ units = ["degF", "degC"] }}')
            return None
        if not name:
            table.fault(name, "conversion.signature", "a conversion needs a name")
        return self.read(name, fields_of(table.section.section(name), table.problems, None))

    def read(self, name: str, fields: Fields) -> Conversion | None:
        """One conversion; `from` and `to` left out are found where rules use it."""
        kinds = [key for key in fields.section.values if key not in OWN_KEYS]
        faults = len(fields.problems)
        for key in kinds:
            if key not in KINDS:
                message = f"there is no kind of conversion {key[:40]!r}"
                hint = suggest(key, (*KINDS, *OWN_KEYS), most=20)
                fields.fault(key, CODES.unknown_key, message, hint=hint)
        if len(kinds) != 1:
            message = f"the conversion {name[:40]!r} needs one kind, has {len(kinds)}"
            hint = f"one of {', '.join(KINDS)}"
            fields.fault("", "interpretation.missing_key", message, hint=hint)
        if len(fields.problems) > faults:
            return None
        how = KINDS[kinds[0]](fields, kinds[0], self)
        taken, given = self._types(fields, "from"), self._types(fields, "to")
        if how is None:
            return None
        usual = self._usual_types(how)
        return Conversion(name, taken or usual[:1], given or usual[1:], how)

    def _types(self, fields: Fields, key: str) -> tuple[TypeRef, ...]:
        written = fields.texts(key, (), example='"number"')
        return tuple(self.names.reference(fields, key, each) for each in written)

    def _usual_types(self, how: How) -> tuple[TypeRef, ...]:
        """Argument and result that need not be said."""
        if isinstance(how, Identity):
            return ("json", "json")
        if isinstance(how, UnitChange):
            return (self.names.add_unit(how.from_unit), self.names.add_unit(how.to_unit))
        return ()
