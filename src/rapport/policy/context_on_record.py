"""Policies that read context over history: by the rows that a node had put on record, or not at
all. [PO-2, PO-8, CX-8]

Nobody can be asked later what a broker would have answered. Evaluated with empty tables such a
policy would find nothing, and not say why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rapport.core.errors import Unsupported
from rapport.policy.compiler.reads import table_attributes
from rapport.policy.plan import Plan
from rapport.tables.recorded_rows import RowsVersion
from rapport.tables.tables import Tables


def check_context_on_record(
    tables: Tables, plans: Iterable[Plan], versions: Sequence[RowsVersion], what: str
) -> None:
    """Raises Unsupported for a plan that reads a table of context of which no version has rows on
    record; the error names policy, attribute and table.
    """
    elsewhere = tables.elsewhere()
    for plan in plans if elsewhere else ():
        for concept, attribute in sorted(read_from_tables(plan) & elsewhere):
            table = unrecorded_table(tables, versions, concept, attribute)
            if table:
                raise Unsupported(
                    f"{plan.policy!r}, which reads {concept}.{attribute} from context,",
                    what,
                    hint=f"nothing is on record of the table {table!r}: a node records its rows, "
                    "from its start on; a replay of its log or a back-test of its lake uses them",
                )


def read_from_tables(plan: Plan) -> set[tuple[str, str]]:
    """Concept and attribute of everything that a plan takes from tables."""
    sides = [side for term in plan.terms for side in (term.first, term.second)]
    found = {(side.concept, one.attribute) for side in sides for one in side.constraints}
    return found | {
        (side.concept, attribute)
        for term in plan.terms
        for side, attribute in table_attributes(term)
    }


def unrecorded_table(
    tables: Tables, versions: Sequence[RowsVersion], concept: str, attribute: str
) -> str:
    """A table of context that gives the attribute and has no rows on record; empty: all have."""
    named = [
        name
        for name, one in tables.declarations().items()
        if one.context and one.concept == concept and attribute in one.columns
    ]
    known = {name for one in versions for name, rows in one.tables.items() if rows.is_known}
    return next((name for name in named if name not in known), "")
