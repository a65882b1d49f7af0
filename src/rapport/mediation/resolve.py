"""An interpretation fitted to a source: units become arithmetic. [ME-7, ME-10, ME-11]

Pure. All faults at once; what is left after them can be compiled without asking anything again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from rapport.core.errors import InterpretationError, InvalidInput, Problem, Severity, UnknownName
from rapport.kernel.toml import TomlFile
from rapport.mediation.as_declared import decimal_mark
from rapport.mediation.binding import SourceBinding, root_interpretation
from rapport.mediation.interpretation import Interpretation, ValueRule
from rapport.mediation.plausibility import plausible_unit
from rapport.units.quantities import Affine, converter

Kind = Literal["number", "text", "boolean"]
POLAR = ("bearing", "distance")
"""Values of these names are a place as a compass and a tape give it; they become x and y."""
_POLAR_UNITS = {"bearing": "deg", "distance": "m"}


class ResolvedValue(msgspec.Struct, frozen=True):
    """A value with its kind and, for numbers with a unit, the arithmetic."""

    rule: ValueRule
    kind: Kind
    affine: Affine | None = None


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """All that the compiler needs."""

    interpretation: Interpretation
    binding: SourceBinding
    values: tuple[ResolvedValue, ...]
    kinds: dict[str, Kind]
    """Kind of every part of the result."""
    polar: bool
    origin_units: tuple[Affine, Affine] | None
    """Length and heading columns of the table to metres and degrees."""


def resolve(interpretation: Interpretation | None, binding: SourceBinding) -> Resolved:
    """Fits an interpretation (None: root) to a source; raises InterpretationError, all faults."""
    problems = _check_root(binding, speaks_root=interpretation is None)
    if problems:
        raise InterpretationError(problems)
    chosen = interpretation or root_interpretation(binding)
    problems = [p for p in check_binding(chosen, binding) if p.severity == "error"]
    if problems:
        raise InterpretationError(problems)
    kind = _kind_of(binding)
    names = {value.name for value in chosen.values} | _given(chosen)
    return Resolved(
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


def check_binding(interpretation: Interpretation, binding: SourceBinding) -> list[Problem]:
    """Every fault of this use; a missing unit is a warning, since it holds readings back."""
    return [
        *_check_shape(interpretation, binding),
        *_check_units(interpretation, binding),
        *_check_conversions(interpretation),
    ]


def check_bindings(
    bindings: Iterable[SourceBinding],
    interpretations: Mapping[str, Interpretation],
    file: TomlFile | None = None,
) -> list[Problem]:
    """Every fault of how a site's sources use its interpretations, for `rapport check`.

    `file` is the site file, to place a source that names an interpretation nobody declared.
    """
    problems: list[Problem] = []
    for binding in bindings:
        name = binding.interpretation
        problems.extend(_check_root(binding, speaks_root=not name))
        if name in interpretations:
            problems.extend(check_binding(interpretations[name], binding))
        elif name:
            problems.append(_unknown(name, binding.source, interpretations, file))
    return problems


def _check_root(binding: SourceBinding, *, speaks_root: bool) -> list[Problem]:
    """The source names as many fields and units as its attribute has parts."""
    problems = []
    for what, given in (("fields", binding.value if speaks_root else ()), ("units", binding.units)):
        if given and len(given) != len(binding.parts):
            message = (
                f"source {binding.source!r} names {len(given)} {what}, "
                f"but {binding.stream} has {len(binding.parts)} parts"
            )
            hint = f"in this order: {', '.join(binding.parts)}"
            problems.append(Problem(code="mediation.part_missing", message=message, hint=hint))
    return problems


def _unknown(
    name: str, source: str, known: Mapping[str, Interpretation], file: TomlFile | None
) -> Problem:
    error = UnknownName("interpretation", name, list(known), code="interpretation.unknown")
    message = f"source {source!r}: {error.message}"
    if file is None:
        return Problem(code=error.code, message=message, hint=error.hint)
    place = ("sources", source, "interpretation")
    return file.problem(place, error.code, message, hint=error.hint)


def _check_shape(interpretation: Interpretation, binding: SourceBinding) -> list[Problem]:
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


def _check_units(interpretation: Interpretation, binding: SourceBinding) -> list[Problem]:
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
    interpretation: Interpretation, rule: ValueRule, binding: SourceBinding
) -> list[Problem]:
    root = _root_unit(rule, binding)
    if root and rule.to and rule.to != root:
        return [
            _problem(
                interpretation,
                "unit.not_root",
                f'{rule.name} is in {root} in root, not in "{rule.to}"',
                f"leave `to` out of value.{rule.name}",
            )
        ]
    if not root and not rule.to and rule.name in binding.parts:
        return [
            _problem(
                interpretation,
                "unit.no_target",
                f"nobody says in which unit {binding.stream} is in root",
                f'add it: value.{rule.name} = {{ ..., unit = "{rule.unit}", to = "..." }}',
            )
        ]
    return _check_pair(interpretation, rule.unit, rule.to or root or rule.unit)


def _check_pair(interpretation: Interpretation, unit: str, target: str) -> list[Problem]:
    try:
        converter(unit, target)
    except InvalidInput as error:
        return [_problem(interpretation, error.code, error.message, error.hint)]
    return []


def _check_conversions(interpretation: Interpretation) -> list[Problem]:
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


def _undeclared(interpretation: Interpretation, rule: ValueRule) -> Problem:
    looks = plausible_unit(rule.field[-1])
    return _problem(
        interpretation,
        "unit.undeclared",
        f"value.{rule.name} has no unit: readings of its sources are held in quarantine",
        'add unit = "..."' + (f"; {looks}" if looks else ""),
        severity="warning",
    )


def _root_unit(rule: ValueRule, binding: SourceBinding) -> str:
    if rule.name in binding.parts:
        return binding.root_unit(rule.name)
    return _POLAR_UNITS.get(rule.name, "") if binding.type == "point" else ""


def _arithmetic(rule: ValueRule, binding: SourceBinding) -> Affine | None:
    if not rule.unit:
        return None
    return converter(rule.unit, rule.to or _root_unit(rule, binding) or rule.unit)


def _origin_units(interpretation: Interpretation) -> tuple[Affine, Affine] | None:
    origin = interpretation.origin
    if origin is None:
        return None
    return converter(origin.unit, "m"), converter(origin.heading_unit, "deg")


def _kind_of(binding: SourceBinding) -> Kind:
    return binding.type if binding.type in ("text", "boolean") else "number"


def _value_kind(rule: ValueRule, binding: SourceBinding) -> Kind:
    return _kind_of(binding) if rule.name in binding.parts else "number"


def _given(interpretation: Interpretation) -> set[str]:
    return {name for rule in interpretation.conversions for name in rule.give}


def _problem(
    interpretation: Interpretation,
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
