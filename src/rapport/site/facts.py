"""What a site's tables know of the things a detection names, for texts of messages. [CO-1]"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rapport.policy.compiler.compile import Compiled
from rapport.tables.tables import Tables

FindPolicy = Callable[[str], Compiled | None]


class SiteFacts:
    """Columns of the tables about an alias's concept: `{A.badge}` in the text of an action."""

    def __init__(self, tables: Tables, policies: FindPolicy | Mapping[str, Compiled]) -> None:
        """`policies`: those of a site, or who knows them by name while they come and go."""
        self._tables = tables
        self._policy = policies.get if isinstance(policies, Mapping) else policies
        self._columns: dict[str, dict[str, str]] = {}
        headings = tables.columns()
        for table, declared in tables.declarations().items():
            for column in headings[table] if declared.concept else ():
                self._columns.setdefault(declared.concept, {}).setdefault(column, table)

    def find(self, policy: str, alias: str, identity: str, column: str) -> str | None:
        """The text in the column of the row about this identity; None when there is none."""
        concept = self._concepts(policy).get(alias, "")
        table = self._columns.get(concept, {}).get(column)
        return None if table is None else self._tables.lookup(table, identity, column)

    def fields(self, policy: str) -> list[str]:
        """Everything a text may ask for about the policy's aliases."""
        found: list[str] = []
        for alias, concept in self._concepts(policy).items():
            found.append(alias)
            found += [f"{alias}.{column}" for column in self._columns.get(concept, {})]
        return found

    def _concepts(self, policy: str) -> dict[str, str]:
        """Concepts by alias."""
        compiled = self._policy(policy)
        if compiled is None:
            return {}
        return {concept.alias: concept.concept for concept in compiled.tree.concepts}
