"""The value templates of Home Assistant that only pick a value; others are refused. [ME-13]

Templates are programs of Jinja. Nearly all that devices announce take one value out of the message
and perhaps round it; those are read here, nothing is ever executed.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput
from rapport.mediation.rejection import Rejected
from rapport.units.quantities import parse_number

_WHOLE = re.compile(r"\s*\{\{-?\s*(.*?)\s*-?\}\}\s*", re.DOTALL)
_NAME = re.compile(r"value_json|value")
_STEP = re.compile(
    r"\.([A-Za-z_]\w*)|\[\s*'([^'\\]*)'\s*\]|\[\s*\"([^\"\\]*)\"\s*\]|\[\s*(\d+)\s*\]"
)
_FILTER = re.compile(r"\s*\|\s*(float|int|round)\s*(?:\(\s*(\d{0,2})\s*\))?")
_LONGEST = 1_000


class NotThere(Rejected):
    """The message does not have what a template names."""


class Template(msgspec.Struct, frozen=True):
    """Where the value stands in the message, and what is done with it."""

    is_json: bool = False
    steps: tuple[str | int, ...] = ()
    filters: tuple[tuple[str, int], ...] = ()
    """Names with the number in their brackets, 0 where there is none."""

    def value_in(self, text: str, decoded: Any) -> Any:
        """The value; `text` is the message, `decoded` the same as JSON. Raises Rejected."""
        value = decoded if self.is_json else text
        for step in self.steps:
            value = _below(value, step)
        for name, digits in self.filters:
            value = _filtered(value, name, digits)
        return value


def read_template(text: str) -> Template:
    """The template; raises Rejected `format.template` for one that does more than pick a value.

    >>> read_template("{{ value_json.ENERGY['Total'] | round(1) }}").steps
    ('ENERGY', 'Total')
    """
    found = _WHOLE.fullmatch(text) if len(text) <= _LONGEST else None
    name = _NAME.match(found[1]) if found else None
    if found is None or name is None:
        raise _refused(text)
    inner, end = found[1], name.end()
    steps: list[str | int] = []
    while step := _STEP.match(inner, end):
        steps.append(
            int(step[4]) if step[4] else next(part for part in step.groups() if part is not None)
        )
        end = step.end()
    filters = []
    while each := _FILTER.match(inner, end):
        filters.append((each[1], int(each[2] or 0)))
        end = each.end()
    if inner[end:].strip() or (steps and name[0] == "value"):
        raise _refused(text)
    return Template(name[0] == "value_json", tuple(steps), tuple(filters))


def _below(value: Any, step: str | int) -> Any:
    if isinstance(value, dict) and str(step) in value:
        return value[str(step)]
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    raise NotThere("field.missing", f"the message has no {step!r}, which the template names")


def _filtered(value: Any, name: str, digits: int) -> Any:
    number = _number(value)
    if number is None:
        return value  # what is no number is for the interpretation to refuse
    if name == "int":
        return int(number)
    return round(number, digits) if name == "round" else float(number)


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        try:
            value = parse_number(value)
        except InvalidInput:
            return None
    if not isinstance(value, (int, float)) or not abs(value) < 1e300:
        return None
    return value


def _refused(text: str) -> Rejected:
    return Rejected(
        "format.template",
        f"the value template {text[:100]!r} is not supported",
        "supported: {{ value }}, {{ value_json.a.b }}, {{ value_json['a'] }}, "
        "with | float, | int, | round(1)",
    )
