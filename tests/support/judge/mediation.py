"""The judge of generated transformers: rules read one by one while walking a value. [ME-3, ME-8]

Written from the text of the source (sections 4.1.2, 4.2.1, 4.3.3) and from nothing in
`mediation` but its data: it parses patterns, inherits, matches and decides precedence on its
own, for every value anew, slowly.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rapport.mediation.conversion.conversions import (
    Call,
    Chain,
    Conversion,
    Enumeration,
    Formula,
    Identity,
    Lookup,
    Rename,
    UnitChange,
    ValueKind,
)
from rapport.mediation.interpretations.model import (
    EXPLORE,
    CreateAttribute,
    Direction,
    DropAttribute,
    Interpretation,
    MergeAttributes,
    RenameAttribute,
    SplitAttribute,
)
from rapport.mediation.rejections import RejectedValue
from support.judge.mediation_conversions import World, convert_directly

_PRIMITIVES = {"text": (), "number": (), "integer": ("number",), "boolean": (), "json": ()}


class Said(NamedTuple):
    """What a pattern says at one place: an attribute (or empty) and a type."""

    attribute: str
    type: str


class Place(NamedTuple):
    """One place of a path: the attribute and the types of its value, lists outermost first."""

    attribute: str
    types: tuple[str, ...]


Trail = tuple[Place, ...]


class Judge:
    """Directly interprets the interpretation at the end of `chain`, which begins with root.

    Expects one that passed its checks, and no functions with state. `world` is what conversions
    look up and were told.
    """

    def __init__(
        self,
        chain: Sequence[Interpretation],
        functions: Mapping[str, Callable[..., Any]],
        world: World | None = None,
    ) -> None:
        self._functions, self._world = functions, world or World()
        self._kinds = {name: name for name in _PRIMITIVES}
        self._supers: dict[str, tuple[str, ...]] = dict(_PRIMITIVES)
        self._own: dict[str, dict[str, tuple[str, bool]]] = {}
        for one in chain:
            for each in one.types:
                self._supers[each.name] = each.super_types
                self._kinds[each.name] = getattr(each, "kind", "object")
                if hasattr(each, "attributes"):
                    self._own[each.name] = {a.name: (a.type, a.optional) for a in each.attributes}
        self._conversions = {each.name: each for one in chain for each in one.conversions}
        self._mappings = {
            (each.source, each.direction): each for one in chain for each in one.mappings
        }
        self._rules = [rule for one in chain for rule in one.rules]

    def transform(self, value: Any, name: str, direction: Direction) -> Any:
        """The event on the other side; raises RejectedValue like a transformer."""
        rules: dict[tuple[Said, ...], str] = {}
        for rule in self._rules:
            if rule.direction in ("both", direction):
                pattern = self.parse(rule.pattern)
                rules.pop(pattern, None)  # the identical pattern said later overrides
                rules[pattern] = rule.conversion
        result = self._value(value, (Place("", (name,)),), rules)
        mapping = self._mappings.get((name, direction))
        if mapping is None:
            return result
        if not isinstance(result, dict):
            raise RejectedValue("value.not_an_object", "")
        return self._reshape(result, mapping.shape)

    # --- types

    def is_subtype(self, one: str, other: str) -> bool:
        """Declared so, or one of its super-types is."""
        if one.startswith("[") and other.startswith("["):
            return self.is_subtype(one[1:-1], other[1:-1])
        return one == other or any(
            self.is_subtype(above, other) for above in self._supers.get(one, ())
        )

    def attributes(self, name: str) -> dict[str, tuple[str, bool]]:
        """Those of all super-types as well as its own."""
        found: dict[str, tuple[str, bool]] = {}
        for above in self._supers.get(name, ()):
            found.update(self.attributes(above))
        found.update(self._own.get(name, {}))
        return found

    def dynamic(self, declared: str) -> list[str]:
        """The types a value may be of where `declared` stands."""
        if declared not in self._own:
            return [declared]
        return [declared] + [
            each for each in self._own if each != declared and self.is_subtype(each, declared)
        ]

    def chains(self, one: str, other: str) -> Iterator[tuple[int, ...]]:
        """Every way up from a type to a super-type, as the numbers of the declarations taken."""
        if one == other:
            yield ()
        for number, above in enumerate(self._supers.get(one, ())):
            for further in self.chains(above, other):
                yield (number, *further)

    # --- patterns

    def parse(self, text: str) -> tuple[Said, ...]:
        """`T.U.a(V)` with the types that are not written filled in."""
        head, *rest = re.split(r"\.", text)
        said = [Said("", head.strip("*"))]
        for part in rest:
            name, _, of = part.rstrip(")").partition("(")
            declared = self.attributes(said[-1].type.strip("[]")).get(name)
            if declared is not None:
                said.append(Said(name, of or declared[0]))
            else:
                said.append(Said("", name.strip("*")))
        return tuple(said)

    def lay(self, pattern: tuple[Said, ...], trail: Trail) -> tuple[Said | None, ...] | None:
        """The last type of a pattern may lie deeper: `T.*U.a`; everything else is fixed."""
        last_type = max(n for n, said in enumerate(pattern) if not said.attribute)
        for gap in range(len(trail)):
            laid = (*pattern[:last_type], *[None] * gap, *pattern[last_type:])
            if len(laid) == len(trail) and all(
                said is None or self._says(said, place, place is trail[-1])
                for said, place in zip(laid, trail, strict=True)
            ):
                return laid
        return None

    def _says(self, said: Said, place: Place, is_last: bool) -> bool:
        if said.attribute and said.attribute != place.attribute:
            return False
        types = place.types[-1:] if is_last else place.types
        return any(self.is_subtype(each, said.type) for each in types)

    # --- precedence

    def choose(self, trail: Trail, rules: Mapping[tuple[Said, ...], str]) -> str | None:
        """The conversion of the rule that counts at a path."""
        left = [
            (laid, conversion)
            for pattern, conversion in rules.items()
            if (laid := self.lay(pattern, trail)) is not None
        ]
        for number, place in enumerate(trail):
            left = self._prefer(left, number, place)
        return left[-1][1] if left else None

    def _prefer(self, left: list[Any], number: int, place: Place) -> list[Any]:
        said = [laid[number] for laid, _ in left]
        # P3, P6: a type derived from another one named here
        left = [
            each
            for each in left
            if each[0][number] is None
            or not any(
                other is not None
                and other.type != each[0][number].type
                and self.is_subtype(other.type, each[0][number].type)
                for other in said
            )
        ]
        # P2, P5: instances over types
        instances = [each for each in left if each[0][number] and each[0][number].attribute]
        # P1: something rather than nothing
        left = instances or [each for each in left if each[0][number]] or left
        if any(each[0][number] is None for each in left):
            return left
        # P4: subtyping level, then order of declaration
        here = place.types[-1].strip("[]")
        distance = {
            each[0][number]: self._distance(here, each[0][number].type.strip("[]")) for each in left
        }
        return [each for each in left if distance[each[0][number]] == min(distance.values())]

    def _distance(self, one: str, other: str) -> tuple[int, tuple[int, ...]]:
        ways = list(self.chains(one, other))
        return max(len(way) for way in ways), min(ways)

    # --- values

    def _value(self, value: Any, trail: Trail, rules: Mapping[tuple[Said, ...], str]) -> Any:
        conversion = self.choose(trail, rules)
        if conversion is not None and conversion != EXPLORE:
            return self._convert(value, self._conversions[conversion])
        here = trail[-1].types[-1]
        if not self._touches(trail, rules):
            return value
        if here.startswith("["):
            if not isinstance(value, list):
                raise RejectedValue("value.not_a_list", "")
            return [self._declared(each, trail, here[1:-1], rules) for each in value]
        if not isinstance(value, dict):
            raise RejectedValue("value.not_an_object", "")
        result = dict(value)
        for name, (declared, optional) in self.attributes(here).items():
            below = (*trail, Place(name, ()))
            if not self._touches_declared(below, declared, rules):
                continue
            if optional and value.get(name) is None:
                continue
            if self._is_identity(below, declared, rules):
                continue
            if name not in value:
                raise RejectedValue("field.missing", "")
            result[name] = self._declared(value[name], below, declared, rules)
        return result

    def _declared(
        self, value: Any, trail: Trail, declared: str, rules: Mapping[tuple[Said, ...], str]
    ) -> Any:
        actual = declared
        if len(self.dynamic(declared)) > 1 and self._touches_declared(trail, declared, rules):
            if not isinstance(value, dict):
                raise RejectedValue("value.not_an_object", "")
            actual = value.get("@type", declared)
            if actual not in self.dynamic(declared):
                raise RejectedValue("value.unknown_type", "")
        return self._value(value, _seen_as(trail, actual), rules)

    def _is_identity(
        self, trail: Trail, declared: str, rules: Mapping[tuple[Said, ...], str]
    ) -> bool:
        if len(self.dynamic(declared)) > 1:
            return False
        conversion = self.choose(_seen_as(trail, declared), rules)
        return conversion in self._conversions and isinstance(
            self._conversions[str(conversion)].how, Identity
        )

    def _touches(self, trail: Trail, rules: Mapping[tuple[Said, ...], str]) -> bool:
        """A rule counts at or below this path."""
        conversion = self.choose(trail, rules)
        if conversion is not None and conversion != EXPLORE:
            return True
        here = trail[-1].types[-1]
        if here.startswith("["):
            return self._touches_declared(trail, here[1:-1], rules)
        return any(
            self._touches_declared((*trail, Place(name, ())), declared, rules)
            for name, (declared, _) in self.attributes(here).items()
        )

    def _touches_declared(
        self, trail: Trail, declared: str, rules: Mapping[tuple[Said, ...], str]
    ) -> bool:
        return any(self._touches(_seen_as(trail, each), rules) for each in self.dynamic(declared))

    # --- conversions and shapes

    def convert(self, conversion: Conversion, *values: Any) -> Any:
        """The conversion of one value, or of several for merging and splitting."""
        if isinstance(conversion.how, ValueKind):
            objects = {
                name: {each: kind for each, (kind, _) in self.attributes(name).items()}
                for name in self._own
            }
            return convert_directly(
                conversion, conversion.how, values, self._world, objects, self._kinds.__getitem__
            )
        return self._convert(values[0], conversion)

    def _convert(self, value: Any, conversion: Conversion) -> Any:
        how = conversion.how
        if isinstance(how, Identity):
            return value
        if isinstance(how, (Formula, UnitChange)):
            return self._arithmetic(value, how)
        if value is None:
            raise RejectedValue("value.null", "")
        if isinstance(how, Chain):
            for step in how.steps:
                value = self._convert(value, step)
            return value
        if isinstance(how, ValueKind):
            return self.convert(conversion, value)
        if isinstance(how, Enumeration):
            for pair in how.pairs:
                key, found = reversed(pair) if how.backwards else pair
                if key == value and isinstance(key, bool) == isinstance(value, bool):
                    return found
            if how.otherwise is msgspec.UNSET:
                raise RejectedValue("lookup.unknown", "")
            return how.otherwise
        if isinstance(how, Lookup):
            for key, found in how.entries:
                if key == value and isinstance(key, bool) == isinstance(value, bool):
                    return found
            if how.otherwise is msgspec.UNSET:
                raise RejectedValue("lookup.unknown", "")
            return how.otherwise
        if isinstance(how, Rename):
            if not isinstance(value, dict):
                raise RejectedValue("value.not_an_object", "")
            renamed = {
                name: value[name]
                for name in value
                if name not in {n for pair in how.names for n in pair}
            }
            renamed |= {new: value[old] for old, new in how.names if old in value}
            if conversion.result not in self._own:
                return renamed
            promised = self.attributes(conversion.result)
            return {name: each for name, each in renamed.items() if name in promised}
        assert isinstance(how, Call)
        try:
            result = self._functions[how.function](value)
        except Exception as error:
            raise RejectedValue("conversion.raised", str(error)) from error
        if not self._is_promised(result, conversion.result):
            raise RejectedValue("conversion.bad_result", "")
        return result

    def _is_promised(self, value: Any, promised: str) -> bool:
        if promised.startswith("["):
            return isinstance(value, list) and all(
                self._is_promised(each, promised[1:-1]) for each in value
            )
        if promised not in self._own:
            allowed: dict[str, Any] = {
                "text": str,
                "boolean": bool,
                "integer": int,
                "number": (int, float),
            }
            kind = self._kinds[promised]
            if isinstance(value, bool) and kind in ("integer", "number"):
                return False
            is_huge = isinstance(value, int) and abs(value) > sys.float_info.max
            is_odd = is_huge or (isinstance(value, float) and not math.isfinite(value))
            return isinstance(value, allowed.get(kind, object)) and (kind == "json" or not is_odd)
        if not isinstance(value, dict):
            return False
        actual = value.get("@type", promised)
        return actual in self.dynamic(promised) and all(
            (optional or self._kinds.get(kind) == "json")
            if value.get(name) is None
            else self._is_promised(value[name], kind)
            for name, (kind, optional) in self.attributes(actual).items()
        )

    def _arithmetic(self, value: Any, how: Formula | UnitChange) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise RejectedValue("value.not_a_number", "")
        affine = how.affine()
        if abs(value) > sys.float_info.max:
            raise RejectedValue("value.not_finite", "")
        result = (float(value) * affine.multiply + affine.add) / affine.divide
        if not math.isfinite(result):
            raise RejectedValue("value.not_finite", "")
        return result

    def _reshape(self, value: Any, shape: Sequence[Any]) -> Any:
        for step in shape:
            if isinstance(step, RenameAttribute):
                value = {step.new if name == step.old else name: v for name, v in value.items()}
            elif isinstance(step, DropAttribute):
                value = {name: each for name, each in value.items() if name != step.name}
            elif isinstance(step, CreateAttribute):
                value = {**value, step.name: step.value}
            elif isinstance(step, MergeAttributes):
                if any(name not in value for name in step.sources):
                    raise RejectedValue("field.missing", "")
                taken = [value[name] for name in step.sources]
                left = {name: each for name, each in value.items() if name not in step.sources}
                merged = self.convert(self._conversions[step.conversion], *taken)
                value = {**left, step.target: merged}
            elif isinstance(step, SplitAttribute):
                if step.source not in value:
                    raise RejectedValue("field.missing", "")
                cut = self.convert(self._conversions[step.conversion], value[step.source])
                left = {name: each for name, each in value.items() if name != step.source}
                value = {**left, **dict(zip(step.targets, cut, strict=True))}
        return value


def _seen_as(trail: Trail, name: str) -> Trail:
    *before, last = trail
    return (*before, Place(last.attribute, (*last.types, name)))
