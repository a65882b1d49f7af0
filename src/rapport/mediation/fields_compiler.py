"""Compiles the fields form: an interpretation resolved for a source, and its generated text. [ME-7,
ME-8, ME-10, ME-11]

Pure. Resolution reports all faults at once and turns units into arithmetic. Only text written here
is compiled: external names enter as the `repr` of a checked string or number or as a bound
constant; variables are `v_` and a checked name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from rapport.core.errors import InterpretationError, InvalidInput, Problem, Severity, UnknownName
from rapport.kernel.toml import TomlFile
from rapport.mediation.formats.base import decimal_mark
from rapport.mediation.interpretations.model import (
    ConversionRule,
    FieldPath,
    FieldsInterpretation,
    IdentityRule,
    TimeRule,
    ValueRule,
    dotted_path,
)
from rapport.mediation.plausibility import plausible_unit
from rapport.mediation.source_bindings import SourceBinding, canonical_interpretation
from rapport.units.quantities import Affine, DecimalMark, converter

Kind = Literal["number", "text", "boolean"]
POLAR = ("bearing", "distance")
"""Values with these names are a polar position and become x and y."""
_POLAR_UNITS = {"bearing": "deg", "distance": "m"}


class ResolvedValue(msgspec.Struct, frozen=True):
    """A value with its kind and, for numbers with a unit, its arithmetic."""

    rule: ValueRule
    kind: Kind
    affine: Affine | None = None


class ResolvedFields(msgspec.Struct, frozen=True, kw_only=True):
    """An interpretation resolved for a source."""

    interpretation: FieldsInterpretation
    binding: SourceBinding
    values: tuple[ResolvedValue, ...]
    kinds: dict[str, Kind]
    """The kind of each part of the result."""
    polar: bool
    origin_units: tuple[Affine, Affine] | None
    """Conversions of the table's length and heading columns to metres and degrees."""


def resolve(interpretation: FieldsInterpretation | None, binding: SourceBinding) -> ResolvedFields:
    """Resolves an interpretation (None: the canonical one) for a source; raises
    InterpretationError with all faults.
    """
    problems = _check_parts(binding, is_canonical=interpretation is None)
    if problems:
        raise InterpretationError(problems)
    chosen = interpretation or canonical_interpretation(binding)
    problems = [p for p in check_binding(chosen, binding) if p.severity == "error"]
    if problems:
        raise InterpretationError(problems)
    kind = _kind_of(binding)
    names = {value.name for value in chosen.values} | _given(chosen)
    return ResolvedFields(
        interpretation=chosen,
        binding=binding,
        values=tuple(
            ResolvedValue(rule, _value_kind(rule, binding), _arithmetic(rule, binding))
            for rule in chosen.values
        ),
        kinds=dict.fromkeys(binding.parts, kind),
        polar=not set(binding.parts) <= names,
        origin_units=_origin_units(chosen),
    )


def check_binding(interpretation: FieldsInterpretation, binding: SourceBinding) -> list[Problem]:
    """Every fault of this use; a missing unit is a warning, since readings are only
    quarantined.
    """
    return [
        *_check_shape(interpretation, binding),
        *_check_units(interpretation, binding),
        *_check_conversions(interpretation),
    ]


def check_bindings(
    bindings: Iterable[SourceBinding],
    interpretations: Mapping[str, FieldsInterpretation],
    file: TomlFile | None = None,
) -> list[Problem]:
    """Every fault in the use of interpretations by a site's sources, for `rapport check`.
    `file`: the site file, to locate a source with an unknown interpretation.
    """
    problems: list[Problem] = []
    for binding in bindings:
        name = binding.interpretation
        problems.extend(_check_parts(binding, is_canonical=not name))
        if name in interpretations:
            problems.extend(check_binding(interpretations[name], binding))
        elif name:
            problems.append(_unknown(name, binding.source, interpretations, file))
    return problems


def _check_parts(binding: SourceBinding, *, is_canonical: bool) -> list[Problem]:
    """Checks that the source names as many fields and units as its attribute has parts."""
    problems = []
    for what, given in (
        ("fields", binding.value if is_canonical else ()),
        ("units", binding.units),
    ):
        if given and len(given) != len(binding.parts):
            message = (
                f"source {binding.source!r} names {len(given)} {what}, "
                f"but {binding.stream} has {len(binding.parts)} parts"
            )
            hint = f"in this order: {', '.join(binding.parts)}"
            problems.append(Problem(code="mediation.part_missing", message=message, hint=hint))
    return problems


def _unknown(
    name: str, source: str, known: Mapping[str, FieldsInterpretation], file: TomlFile | None
) -> Problem:
    error = UnknownName("interpretation", name, list(known), code="interpretation.unknown")
    message = f"source {source!r}: {error.message}"
    if file is None:
        return Problem(code=error.code, message=message, hint=error.hint)
    place = ("sources", source, "interpretation")
    return file.problem(place, error.code, message, hint=error.hint)


def _check_shape(interpretation: FieldsInterpretation, binding: SourceBinding) -> list[Problem]:
    names = {value.name for value in interpretation.values} | _given(interpretation)
    missing = [part for part in binding.parts if part not in names]
    problems = []
    if missing and not (binding.type == "point" and set(POLAR) <= names):
        also = ", or bearing and distance" if binding.type == "point" else ""
        problems.append(
            _problem(
                interpretation,
                "mediation.part_missing",
                f"nothing gives {', '.join(missing)} of {binding.stream}",
                f'declare value.{missing[0]} = {{ field = "...", unit = "..." }}{also}',
            )
        )
    if interpretation.origin is not None and binding.type != "point":
        problems.append(
            _problem(
                interpretation,
                "mediation.origin_needs_point",
                f"relative_to places points, but {binding.stream} is a {binding.type}",
            )
        )
    return problems


def _check_units(interpretation: FieldsInterpretation, binding: SourceBinding) -> list[Problem]:
    problems = []
    are_texts = decimal_mark(interpretation.format) is not None  # then each value has a mark
    for rule in interpretation.values:
        kind = _value_kind(rule, binding)
        if kind != "number":
            if rule.unit or rule.to or (rule.decimal and not are_texts):
                problems.append(
                    _problem(
                        interpretation,
                        "mediation.unit_of_text",
                        f"{rule.name} of {binding.stream} is a {kind} and has no unit",
                    )
                )
        elif not rule.unit:
            problems.append(_undeclared(interpretation, rule))
        else:
            problems.extend(_check_target(interpretation, rule, binding))
    if interpretation.origin is not None:
        origin = interpretation.origin
        problems.extend(_check_pair(interpretation, origin.unit, "m"))
        problems.extend(_check_pair(interpretation, origin.heading_unit, "deg"))
    return problems


def _check_target(
    interpretation: FieldsInterpretation, rule: ValueRule, binding: SourceBinding
) -> list[Problem]:
    canonical = _canonical_unit(rule, binding)
    if canonical and rule.to and rule.to != canonical:
        return [
            _problem(
                interpretation,
                "unit.not_root",
                f'{rule.name} is in {canonical} in the canonical model, not in "{rule.to}"',
                f"leave `to` out of value.{rule.name}",
            )
        ]
    if not canonical and not rule.to and rule.name in binding.parts:
        return [
            _problem(
                interpretation,
                "unit.no_target",
                f"the canonical unit of {binding.stream} is not declared",
                f'add it: value.{rule.name} = {{ ..., unit = "{rule.unit}", to = "..." }}',
            )
        ]
    return _check_pair(interpretation, rule.unit, rule.to or canonical or rule.unit)


def _check_pair(interpretation: FieldsInterpretation, unit: str, target: str) -> list[Problem]:
    try:
        converter(unit, target)
    except InvalidInput as error:
        return [_problem(interpretation, error.code, error.message, error.hint)]
    return []


def _check_conversions(interpretation: FieldsInterpretation) -> list[Problem]:
    known = {value.name for value in interpretation.values}
    problems = []
    for rule in interpretation.conversions:
        for name in rule.take:
            if name not in known:
                problems.append(
                    _problem(
                        interpretation,
                        "mediation.unknown_value",
                        f"{rule.call!r} takes {name!r}, which nothing before it gives",
                        f"known here: {', '.join(sorted(known))}",
                    )
                )
        known |= set(rule.give)
    return problems


def _undeclared(interpretation: FieldsInterpretation, rule: ValueRule) -> Problem:
    looks = plausible_unit(rule.field[-1])
    return _problem(
        interpretation,
        "unit.undeclared",
        f"value.{rule.name} has no unit: readings of its sources are held in quarantine",
        'add unit = "..."' + (f"; {looks}" if looks else ""),
        severity="warning",
    )


def _canonical_unit(rule: ValueRule, binding: SourceBinding) -> str:
    if rule.name in binding.parts:
        return binding.canonical_unit(rule.name)
    return _POLAR_UNITS.get(rule.name, "") if binding.type == "point" else ""


def _arithmetic(rule: ValueRule, binding: SourceBinding) -> Affine | None:
    if not rule.unit:
        return None
    return converter(rule.unit, rule.to or _canonical_unit(rule, binding) or rule.unit)


def _origin_units(interpretation: FieldsInterpretation) -> tuple[Affine, Affine] | None:
    origin = interpretation.origin
    if origin is None:
        return None
    return converter(origin.unit, "m"), converter(origin.heading_unit, "deg")


def _kind_of(binding: SourceBinding) -> Kind:
    return binding.type if binding.type in ("text", "boolean") else "number"


def _value_kind(rule: ValueRule, binding: SourceBinding) -> Kind:
    return _kind_of(binding) if rule.name in binding.parts else "number"


def _given(interpretation: FieldsInterpretation) -> set[str]:
    return {name for rule in interpretation.conversions for name in rule.give}


def _problem(
    interpretation: FieldsInterpretation,
    code: str,
    message: str,
    hint: str = "",
    severity: Severity = "error",
) -> Problem:
    place = interpretation.place
    return Problem(
        file=place.file,
        line=place.line,
        column=place.column,
        severity=severity,
        code=code,
        message=f"interpretation {interpretation.name!r}: {message}",
        hint=hint,
    )


_READERS = {"text": "text", "boolean": "truth"}


def generate_transformer(resolved: ResolvedFields) -> str:
    """The source of `transform(raw, position)`; linear in values and conversions."""
    interpretation, binding = resolved.interpretation, resolved.binding
    body = [
        *_check_type(interpretation.type),
        "data = decode_object(raw)",
        *_check_undeclared_units(resolved.values),
        "",
        *_time(interpretation.time, decimal_mark(interpretation.format), binding.zone),
        "",
        *_identity(interpretation.identity),
        f"subject = subject_of({binding.concept + '/'!r}, key)",
        "",
        *(line for value in resolved.values for line in _value(value)),
        *(
            line
            for number, rule in enumerate(interpretation.conversions)
            for line in _conversion(number, rule, resolved)
        ),
        *_place(resolved),
        *_finite(resolved),
        "",
        *_result(resolved),
    ]
    about = f"# {interpretation.name!r} for source {binding.source!r}: gives {binding.stream!r}"
    lines = [about, "def transform(raw, position):", *(f"    {line}".rstrip() for line in body)]
    return "\n".join(lines) + "\n"


def _check_type(expected: str) -> list[str]:
    if not expected:
        return []
    return [f"if raw.type != {expected!r}:", f"    wrong_type(raw.type, {expected!r})"]


def _check_undeclared_units(values: tuple[ResolvedValue, ...]) -> list[str]:
    """Comes first: without a unit there is no reading, whatever else is wrong."""
    lines = []
    for value in values:
        if value.kind == "number" and value.affine is None:
            lines += _read("held", value.rule.field)
            lines.append(f"undeclared(held, {dotted_path(value.rule.field)!r})")
    return lines


def _read(variable: str, path: FieldPath) -> list[str]:
    lines = [f"{variable} = data.get({path[0]!r}, MISSING)"]
    for part in path[1:]:
        lines.append(
            f"{variable} = {variable}.get({part!r}, MISSING) "
            f"if {variable}.__class__ is dict else MISSING"
        )
    return lines


def _time(rule: TimeRule | None, decimal: DecimalMark | None, zone: str) -> list[str]:
    """`decimal`: the notation of numbers in text formats; `zone`: of the source or site."""
    if rule is None:
        return ["# time: of the envelope", "time = raw.time"]
    field, zone = dotted_path(rule.field), rule.zone or zone
    as_text = f", {decimal!r}" if decimal else ""
    call = {
        "iso8601": f"iso_time(time, {field!r}, {zone!r})",
        "epoch_s": f"epoch_time(time, {field!r}, 1000.0{as_text})",
        "epoch_ms": f"epoch_time(time, {field!r}, 1.0{as_text})",
        "root": f"root_time(time, {field!r}, {zone!r})",
    }.get(rule.format, f"pattern_time(time, {field!r}, {rule.format!r}, {zone!r})")
    if rule.optional:
        call = f"raw.time if time is MISSING else {call}"
    return [f"# time: {rule.format!r}", *_read("time", rule.field), f"time = {call}"]


def _identity(rule: IdentityRule) -> list[str]:
    field = dotted_path(rule.field)
    found = f"name(seen, {field!r})"
    if rule.lookup is not None:
        found = f"find_identity({found})"
    lines = ["# identity", *_read("seen", rule.field)]
    if rule.nobody or rule.otherwise:
        tests = ["seen is None"] if rule.otherwise else []
        if rule.nobody:  # an integer identity is compared as its digits
            seen = "(str(seen) if seen.__class__ is int else seen)"
            tests.append(f"{seen} in {rule.nobody!r}")
        lines.append(f"key = None if {' or '.join(tests)} else {found}")
    else:
        lines.append(f"key = {found}")
    if rule.lookup is None and not rule.nobody and not rule.otherwise:
        return lines
    return [*lines, "if key is None:", *(f"    {line}" for line in _otherwise(rule, field))]


def _otherwise(rule: IdentityRule, field: str) -> list[str]:
    if not rule.otherwise:
        table = rule.lookup.table if rule.lookup else ""
        return [f"unknown_identity(seen, {field!r}, {table!r})"]
    lines, terms = [], []
    for index, piece in enumerate(rule.otherwise):
        if isinstance(piece, str):
            terms.append(repr(piece))
        else:
            lines += _read(f"part_{index}", piece)
            terms.append(f"name(part_{index}, {dotted_path(piece)!r})")
    return [*lines, f"key = {' + '.join(terms)}"]


def _value(value: ResolvedValue) -> list[str]:
    rule, variable, field = value.rule, f"v_{value.rule.name}", dotted_path(value.rule.field)
    lines = _read(variable, rule.field)
    if value.kind == "boolean" and rule.decimal:  # a text format
        return [*lines, f"{variable} = truth_or_text({variable}, {field!r})"]
    if value.kind != "number":
        return [*lines, f"{variable} = {_READERS[value.kind]}({variable}, {field!r})"]
    if rule.decimal:
        lines.append(f"{variable} = number_or_text({variable}, {field!r}, {rule.decimal!r})")
    else:
        # A float from JSON is always finite, so only other types are checked.
        lines.append(f"if {variable}.__class__ is not float:")
        lines.append(f"    {variable} = number({variable}, {field!r})")
    if value.affine is not None and not value.affine.is_identity:
        lines.append(f"{variable} = {value.affine.expression(variable)}")
    return lines


def _conversion(number: int, rule: ConversionRule, resolved: ResolvedFields) -> list[str]:
    taken = "".join(f"v_{name}, " for name in rule.take)
    given = "".join(f"v_{name}, " for name in rule.give).rstrip(" ")
    lines = [f"{given} = convert_{number}(({taken}))"]
    for name in rule.give:
        reader = _READERS.get(resolved.kinds.get(name, "number"), "number")
        lines.append(f"v_{name} = {reader}(v_{name}, {f'{name} from {rule.call}'!r})")
    return lines


def _place(resolved: ResolvedFields) -> list[str]:
    """Polar to Cartesian, relative to absolute; conventions in `units/coordinates.py`."""
    origin = resolved.interpretation.origin
    if origin is None:
        return ["v_x, v_y = polar_to_cartesian(v_bearing, v_distance)"] if resolved.polar else []
    heading = ", heading" if origin.heading else ""
    lines = [
        *_read("device", origin.key),
        f"origin_x, origin_y{heading} = find_origin(name(device, {dotted_path(origin.key)!r}))",
    ]
    if resolved.polar:
        turned = "v_bearing + heading" if origin.heading else "v_bearing"
        lines.append(f"v_x, v_y = polar_to_cartesian({turned}, v_distance)")
    elif origin.heading:
        return [*lines, "v_x, v_y = relative_to_absolute(v_x, v_y, origin_x, origin_y, heading)"]
    return [*lines, "v_x = origin_x + v_x", "v_y = origin_y + v_y"]


def _finite(resolved: ResolvedFields) -> list[str]:
    parts = [part for part, kind in resolved.kinds.items() if kind == "number"]
    if not parts:
        return []
    tests = " and ".join(f"isfinite(v_{part})" for part in parts)
    return [f"if not ({tests}):", f"    not_finite({resolved.binding.stream!r})"]


def _result(resolved: ResolvedFields) -> list[str]:
    interpretation, binding = resolved.interpretation, resolved.binding
    parts = ", ".join(f"v_{part}" for part in binding.parts)
    return [
        "headers = {",
        "    **kept_headers(raw.headers),",
        "    'cause': cause_text(raw.id),",
        f"    'interpretation': {interpretation.stamp()!r},",
        f"    'rawchannel': {binding.raw_channel!r},",
        "    'rawposition': str(position),",
        "}",
        f"reading = encode({{'key': key, 'value': [{parts}]}})",
        f"return Event(raw.source, raw.id, {binding.stream!r}, subject, time, reading, headers)",
    ]
