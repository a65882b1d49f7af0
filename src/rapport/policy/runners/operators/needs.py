"""For whom of a family occurrences and matches count: the column of needs, where there is one.
[PO-13]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rapport.policy.plan import Plan
from rapport.policy.runners.operators.identities import Identities
from rapport.policy.runners.operators.intake import StreamRows
from rapport.policy.runners.operators.predicate import Predicate
from rapport.policy.runners.operators.stream_steps import StreamOccurrences
from rapport.policy.runners.operators.table import Columns, Rows
from rapport.policy.runners.operators.varying import NEED, Varying, VaryingProperty, VaryingTerm


class VariantMask:
    """What says it for one plan, which stands for a family; no columns when it does not."""

    def __init__(
        self,
        plan: Plan,
        varying: Varying | None,
        predicates: Mapping[int, Predicate],
        identities_of: Callable[[str], Identities],
    ) -> None:
        """`predicates`: by term; `identities_of`: of what an alias stands for."""
        self._plan, self._varying = plan, varying
        self._predicates, self._identities_of = predicates, identities_of

    def of_term(self, number: int) -> VaryingTerm | None:
        """What says it of the term's rows; None when they count for all."""
        varying = self._varying
        return varying if isinstance(varying, VaryingTerm) and varying.term == number else None

    def of_values(
        self, number: int, first: Any, second: Any, first_codes: Rows, second_codes: Rows
    ) -> Columns:
        """Of identities, and the values that events bring (None: a table gives them)."""
        varies = self.of_term(number)
        if varies is None:
            return {}
        predicate = self._predicates[number]
        return {NEED: varies.needs(predicate, first, second, first_codes, second_codes)}

    def of_rows(self, number: int, rows: StreamRows, occurred: StreamOccurrences) -> Columns:
        """Of occurrences that rows are by themselves."""
        term = self._plan.terms[number]
        first, second = (
            rows.values[occurred.places] if side.stream is not None else None
            for side in (term.first, term.second)
        )
        codes = occurred.columns["first"], occurred.columns["second"]
        return self.of_values(number, first, second, *codes)

    def of_pairs(
        self, number: int, first: Columns, here: Rows, second: Columns, there: Rows
    ) -> Columns:
        """Of pairs of events."""
        if self.of_term(number) is None:
            return {}
        ends = first["value"][here], second["value"][there]
        codes = first["code"][here], second["code"][there]
        return self.of_values(number, *ends, *codes)

    def joined(self, frame: Columns) -> Columns:
        """The frame with the needs of the alias that a family differs in, once it has that and
        only absence mentions it.
        """
        varying = self._varying
        if not isinstance(varying, VaryingProperty) or not varying.absent or NEED in frame:
            return frame
        return self.of_alias(varying, frame) if varying.alias in frame else frame

    def of_alias(self, varying: VaryingProperty, frame: Columns) -> Columns:
        """The frame with the needs of an alias that it has."""
        identities = self._identities_of(varying.alias[1:])
        return frame | {NEED: varying.needs(identities, frame[varying.alias])}
