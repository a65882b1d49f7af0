"""A property in own terms as properties of root, all of which must hold. [ME-9, PO-3]"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import msgspec

from rapport.core.boundaries import span_of
from rapport.core.terms import Constant, Linear, Listed, Same, Scalar, Term
from rapport.policy.language.tree import Operator, Property

_LARGEST = sys.float_info.max
_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}


class UntranslatableTerm(Exception):
    """Properties of root cannot say it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def canonical_properties(item: Property, term: Term) -> tuple[Property, ...]:
    """The property said in root; none when it always holds. Raises Unsayable.

    A property of the wrong type stays so, under root's name: the check says what is wrong.
    """
    match term:
        case Same(path):
            return _named(item, path)
        case Linear(path) if isinstance(item.value, str):
            return _named(item, path)
        case Linear():
            return _number(item, term)
        case Listed():
            return _listed(item, term)
        case Constant(value):
            return _constant(item, value)
        case _:
            reason = getattr(term, "reason", "made of several attributes")
            raise UntranslatableTerm(f"cannot be compared in root ({reason})", _ROOT_INSTEAD)


_ROOT_INSTEAD = "write this policy in root's terms, or give the interpretation units or a look-up"


def _named(item: Property, path: tuple[str | int, ...]) -> tuple[Property, ...]:
    if len(path) != 1:
        raise UntranslatableTerm("is part of another attribute in root", _ROOT_INSTEAD)
    return (msgspec.structs.replace(item, attribute=str(path[0])),)


def _number(item: Property, term: Linear) -> tuple[Property, ...]:
    """A threshold as the float of root at which it turns."""
    (named,) = _named(item, term.path)
    assert not isinstance(item.value, str)
    if item.operator == "!=":
        return (_unequal(named, term, item.value),)
    span = span_of(term, item.operator, item.value)
    if span is None:
        return (_with(named, ">", _LARGEST),)  # no number of root leads there
    if span.low is not None and span.low == span.high:
        return (_with(named, "=", span.low),)
    ends = []
    if span.low is not None or span.high is None:
        ends.append(_with(named, ">=", -_LARGEST if span.low is None else span.low))
    if span.high is not None:
        ends.append(_with(named, "<=", span.high))
    return tuple(ends)


def _unequal(named: Property, term: Linear, value: float) -> Property:
    span = span_of(term, "=", value)
    if span is None:
        return _with(named, ">=", -_LARGEST)  # any number, but there must be one
    if span.low is None or span.low != span.high:
        message = "several numbers of root lead to this one, and != can name only one"
        raise UntranslatableTerm(message, "say < or > with two policies, or = with a rounded number")
    return _with(named, "!=", span.low)


def _listed(item: Property, term: Listed) -> tuple[Property, ...]:
    """Keys of the look-up: `=` with one of them, or `!=` with each that must not be."""
    (named,) = _named(item, term.path)
    if item.operator not in ("=", "!="):
        raise UntranslatableTerm("comes from a look-up, which has no order", "use = or !=")
    meant = {key for key, value in term.entries if _holds(item, value) and key is not None}
    others = {key for key, _ in term.entries if key is not None and key not in meant}
    by_default = term.otherwise is not msgspec.UNSET and _holds(item, term.otherwise)
    if by_default and not others:
        raise UntranslatableTerm("holds for every value", "leave this property out")
    if by_default:
        return tuple(_with(named, "!=", _said(key)) for key in _in_order(others, term))
    if len(meant) == 1:
        return (_with(named, "=", _said(meant.pop())),)
    listed = ", ".join(repr(key) for key in _in_order(meant, term)) or "no value of root"
    hint = "write one policy for each, or in root's terms"
    raise UntranslatableTerm(f"means {listed}, and a property names one", hint)


def _holds(item: Property, value: Scalar) -> bool:
    """A missing value satisfies nothing."""
    if value is None:
        return False
    wanted: Scalar = item.value
    if isinstance(value, bool):
        wanted = _TRUTHS.get(item.value.lower()) if isinstance(item.value, str) else None
    is_same = isinstance(value, str) == isinstance(wanted, str) and value == wanted
    return is_same is (item.operator == "=")


def _constant(item: Property, value: Scalar) -> tuple[Property, ...]:
    if item.operator not in ("=", "!="):
        raise UntranslatableTerm(f"is always {value!r} here", "leave this property out, or use = or !=")
    if _holds(item, value):
        return ()
    raise UntranslatableTerm(f"is always {value!r} here, so this never holds", "mend or remove the policy")


def _in_order(keys: Iterable[Scalar], term: Listed) -> list[Scalar]:
    wanted = set(keys)
    return [key for key, _ in term.entries if key in wanted]


def _said(key: Scalar) -> str | float:
    """A value of root as a property says it."""
    if isinstance(key, bool):
        return "true" if key else "false"
    assert key is not None
    return key if isinstance(key, str) else float(key)


def _with(named: Property, operator: Operator, value: str | float) -> Property:
    return msgspec.structs.replace(named, operator=operator, value=value)
