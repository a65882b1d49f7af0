"""From a resolved interpretation to the text of one specialised function; no I/O. [ME-8]

Only text written here is ever compiled. What comes from outside enters as the `repr` of a checked
text or number (field names, units' arithmetic) or as a bound constant; variables are named by us
(`v_` and a checked name).
"""

from __future__ import annotations

from rapport.mediation.as_declared import decimal_mark
from rapport.mediation.interpretation import ConversionRule, IdentityRule, Path, TimeRule, shown
from rapport.mediation.resolve import Resolved, ResolvedValue
from rapport.units.quantities import DecimalMark

_READERS = {"text": "text", "boolean": "truth"}


def generate(resolved: Resolved) -> str:
    """The source text of `transform(raw, position)`; linear in values and conversions."""
    interpretation, binding = resolved.interpretation, resolved.binding
    body = [
        *_check_type(interpretation.type),
        "data = decode_object(raw)",
        *_hold_back(resolved.values),
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


def _hold_back(values: tuple[ResolvedValue, ...]) -> list[str]:
    """Without a unit there is no reading, whatever else may be wrong; so this comes first."""
    lines = []
    for value in values:
        if value.kind == "number" and value.affine is None:
            lines += _read("held", value.rule.field)
            lines.append(f"undeclared(held, {shown(value.rule.field)!r})")
    return lines


def _read(variable: str, path: Path) -> list[str]:
    lines = [f"{variable} = data.get({path[0]!r}, MISSING)"]
    for part in path[1:]:
        lines.append(
            f"{variable} = {variable}.get({part!r}, MISSING) "
            f"if {variable}.__class__ is dict else MISSING"
        )
    return lines


def _time(rule: TimeRule | None, decimal: DecimalMark | None, zone: str) -> list[str]:
    """`decimal`: how numbers are written in a format that knows only texts; `zone`: of the source
    or the site.
    """
    if rule is None:
        return ["# time: of the envelope", "time = raw.time"]
    field, zone = shown(rule.field), rule.zone or zone
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
    field = shown(rule.field)
    found = f"name(seen, {field!r})"
    if rule.lookup is not None:
        found = f"find_identity({found})"
    lines = ["# identity", *_read("seen", rule.field)]
    if rule.nobody or rule.otherwise:
        tests = ["seen is None"] if rule.otherwise else []
        if rule.nobody:  # a number is named by its digits, also one that means nobody
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
            terms.append(f"name(part_{index}, {shown(piece)!r})")
    return [*lines, f"key = {' + '.join(terms)}"]


def _value(value: ResolvedValue) -> list[str]:
    rule, variable, field = value.rule, f"v_{value.rule.name}", shown(value.rule.field)
    lines = _read(variable, rule.field)
    if value.kind == "boolean" and rule.decimal:  # the format knows only texts
        return [*lines, f"{variable} = truth_or_text({variable}, {field!r})"]
    if value.kind != "number":
        return [*lines, f"{variable} = {_READERS[value.kind]}({variable}, {field!r})"]
    if rule.decimal:
        lines.append(f"{variable} = number_or_text({variable}, {field!r}, {rule.decimal!r})")
    else:
        # A float from JSON is always finite, so only the rest needs a look.
        lines.append(f"if {variable}.__class__ is not float:")
        lines.append(f"    {variable} = number({variable}, {field!r})")
    if value.affine is not None and not value.affine.is_identity:
        lines.append(f"{variable} = {value.affine.expression(variable)}")
    return lines


def _conversion(number: int, rule: ConversionRule, resolved: Resolved) -> list[str]:
    taken = "".join(f"v_{name}, " for name in rule.take)
    given = "".join(f"v_{name}, " for name in rule.give).rstrip(" ")
    lines = [f"{given} = convert_{number}(({taken}))"]
    for name in rule.give:
        reader = _READERS.get(resolved.kinds.get(name, "number"), "number")
        lines.append(f"v_{name} = {reader}(v_{name}, {f'{name} from {rule.call}'!r})")
    return lines


def _place(resolved: Resolved) -> list[str]:
    """Polar to cartesian, relative to absolute; conventions in `units/coordinates.py`."""
    origin = resolved.interpretation.origin
    if origin is None:
        return ["v_x, v_y = polar_to_cartesian(v_bearing, v_distance)"] if resolved.polar else []
    heading = ", heading" if origin.heading else ""
    lines = [
        *_read("device", origin.key),
        f"origin_x, origin_y{heading} = find_origin(name(device, {shown(origin.key)!r}))",
    ]
    if resolved.polar:
        turned = "v_bearing + heading" if origin.heading else "v_bearing"
        lines.append(f"v_x, v_y = polar_to_cartesian({turned}, v_distance)")
    elif origin.heading:
        return [*lines, "v_x, v_y = relative_to_absolute(v_x, v_y, origin_x, origin_y, heading)"]
    return [*lines, "v_x = origin_x + v_x", "v_y = origin_y + v_y"]


def _finite(resolved: Resolved) -> list[str]:
    parts = [part for part, kind in resolved.kinds.items() if kind == "number"]
    if not parts:
        return []
    tests = " and ".join(f"isfinite(v_{part})" for part in parts)
    return [f"if not ({tests}):", f"    not_finite({resolved.binding.stream!r})"]


def _result(resolved: Resolved) -> list[str]:
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
