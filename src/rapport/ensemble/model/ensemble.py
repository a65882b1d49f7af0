"""Ensemble classes: coordinator and member role, membership condition, exchange. [EN-2]"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Hashable
from typing import Any, ClassVar, NamedTuple

from rapport.core.errors import InvalidInput, nearest_names
from rapport.ensemble.model.component import period_ms
from rapport.ensemble.model.role import Role, RoleType, plan_of

_ARGUMENTS = {
    "membership": ("coordinator", "member"),
    "exchange": ("coordinator", "member"),
    "boundary": ("sender", "node"),
    "group": ("coordinator",),
}
"""The functions of an ensemble and what they are given."""


class Ensemble:
    """A group of a coordinator and its members that forms by what they know.

    Subclass it with a period, annotate `coordinator` and `member` with roles, and write static
    functions. `membership(coordinator, member) -> bool` and `exchange(coordinator, member)` are
    asked for; `boundary(sender, node) -> bool` says whether knowledge is passed on here, and
    `group(coordinator)` gives a value that components of one communication group share. They are
    evaluated on copies: only what `exchange` did to components of this node is kept. They must not
    wait, and may be evaluated more than once.

    `writes="coordinator"` (or "member") says that exchanges change that side only: nodes where only
    the other side lives do not evaluate it, and what is written to the other side is never kept.
    """

    every: ClassVar[str] = ""
    writes: ClassVar[str] = ""

    def __init_subclass__(cls, *, every: str = "", writes: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if writes:
            _check_side(cls.__name__, writes)
            cls.writes = writes
        if every:
            period_ms(every, f"the ensemble {cls.__name__}")
            cls.every = every
        for name in _ARGUMENTS:
            found = vars(cls).get(name)
            if inspect.isfunction(found):
                setattr(cls, name, staticmethod(found))


class EnsemblePlan(NamedTuple):
    """An ensemble, checked and ready to be evaluated."""

    name: str
    every_ms: int
    coordinator: RoleType
    member: RoleType
    writes: str
    """The side that exchanges change; empty: both."""
    membership: Callable[[Any, Any], bool]
    exchange: Callable[[Any, Any], None]
    boundary: Callable[[Any, Any], bool] | None
    boundary_roles: tuple[RoleType, ...]
    """Whose knowledge the boundary judges: any of these."""
    group: Callable[[Any], Hashable] | None
    group_role: RoleType
    """Who is put into groups."""


def plan_of_ensemble(cls: type[Ensemble]) -> EnsemblePlan:
    """The plan of an ensemble; raises InvalidInput for what is missing or cannot be meant."""
    if not (inspect.isclass(cls) and issubclass(cls, Ensemble)):
        raise _bad(f"{cls!r:.60} is not an ensemble", "class Mine(Ensemble, every='1 s'): ...")
    name = cls.__name__
    if not cls.every:
        raise InvalidInput(
            f"the ensemble {name} has no period",
            code="ensemble.bad_schedule",
            hint=f'class {name}(Ensemble, every="1 s")',
        )
    coordinator, member = _roles(cls)
    boundary, group = _function(cls, "boundary", False), _function(cls, "group", False)
    boundary_role = _first_role(cls, boundary)
    return EnsemblePlan(
        name,
        period_ms(cls.every, f"the ensemble {name}"),
        coordinator,
        member,
        cls.writes,
        _function(cls, "membership", True),
        _function(cls, "exchange", True),
        boundary,
        (boundary_role,) if boundary_role is not None else (member, coordinator),
        group,
        _first_role(cls, group) or coordinator,
    )


def _check_side(name: str, side: str) -> None:
    if side not in ("coordinator", "member"):
        near = nearest_names(side, ("coordinator", "member"))
        raise _bad(
            f"the ensemble {name} cannot write to {side!r}",
            f"did you mean {near[0]!r}?" if near else "coordinator or member; without it, both",
        )


def _roles(cls: type[Ensemble]) -> tuple[RoleType, RoleType]:
    hints = _hints(cls, cls)
    found = []
    for side in ("coordinator", "member"):
        role = hints.get(side)
        if role is None:
            near = nearest_names(side, hints)
            raise _bad(
                f"the ensemble {cls.__name__} says no role for its {side}",
                f"you wrote {near[0]!r}" if near else f"{side}: SomeRole",
            )
        found.append(_checked_role(cls, side, role))
    return found[0], found[1]


def _checked_role(cls: type[Ensemble], side: str, role: Any) -> RoleType:
    if not (isinstance(role, RoleType) and issubclass(role, Role)):
        raise _bad(
            f"the {side} of the ensemble {cls.__name__} is {role!r:.60}, which is no role",
            "name one class that is made from Role or Component",
        )
    plan_of(role)  # raises for fields that cannot be, now and not at the first evaluation
    return role


def _function(cls: type[Ensemble], name: str, needed: bool) -> Any:
    function = getattr(cls, name, None)
    if function is None:
        if not needed:
            return None
        near = nearest_names(name, [own for own in vars(cls) if own not in _ARGUMENTS])
        hint = f"did you mean it by {near[0]!r}?" if near else f"@staticmethod def {name}(...)"
        raise _bad(f"the ensemble {cls.__name__} has no {name}", hint)
    count = len(_ARGUMENTS[name])
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        raise _bad(
            f"{cls.__name__}.{name} does not take {count} argument{'s' * (count > 1)}",
            f"def {name}({', '.join(_ARGUMENTS[name])}), without self",
        ) from None
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise _bad(f"{cls.__name__}.{name} is not a plain function", "write def, and no yield")
    return function


def _first_role(cls: type[Ensemble], function: Any) -> RoleType | None:
    """The role that the function's first argument is annotated with."""
    if function is None:
        return None
    first = next(iter(inspect.signature(function).parameters), "")
    role = _hints(cls, function).get(first)
    if role is None or role is Any:
        return None
    return _checked_role(cls, first, role)


def _hints(cls: type[Ensemble], of: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(of)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise _bad(
            f"the ensemble {cls.__name__} names a type that is not known: {error}",
            "roles are defined at the top of a file",
        ) from None


def _bad(message: str, hint: str) -> InvalidInput:
    return InvalidInput(message, code="ensemble.bad_ensemble", hint=hint)
