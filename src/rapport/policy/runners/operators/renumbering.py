"""The state of an operator in other ordinals: it was saved where events were counted otherwise.
[PO-8, PO-13]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rapport.policy.runners.operators.intake import saved_ordinals
from rapport.policy.runners.operators.table import Array, Columns


def renumbered(state: Any, by: int) -> Any:
    """The state with larger ordinals of events. Order and distances stay; numbers below 0 stand
    for no event, or for sets of causes, and stay too. Costs a copy of what names events.
    """
    if not by:
        return state
    window = state["window"]
    correlations = window["correlations"]
    return state | {
        "window": window
        | {
            "events": window["events"]
            | {
                "ordinals": saved_ordinals(window["events"]) + by,
                "next": window["events"]["next"] + by,
            },
            "occurrences": _each(window["occurrences"], by),
            "correlations": {
                "sides": _each(correlations["sides"], by),
                "used": {term: _used(own, by) for term, own in correlations["used"].items()},
            },
        },
        "open": _each(state["open"], by),
        "waiting": None if state["waiting"] is None else _columns(state["waiting"], by),
    }


def _each(tables: Mapping[str, Columns], by: int) -> dict[str, Columns]:
    return {name: _columns(columns, by) for name, columns in tables.items()}


def _columns(columns: Columns, by: int) -> Columns:
    names = [name for name in columns if name.startswith(("event", "other"))]
    return columns | {name: _grown(columns[name], by) for name in names}


def _grown(column: Array, by: int) -> Array:
    return np.where(column >= 0, column + by, column)


def _used(pairs: list[Any], by: int) -> list[Any]:
    """Of pairs of identities the events used up with their times; under a mark (below 0) stands an
    event.
    """
    return [
        [
            first,
            second,
            {
                (event + by if event >= 0 else event): (value if event >= 0 else value + by)
                for event, value in used.items()
            },
        ]
        for first, second, used in pairs
    ]
