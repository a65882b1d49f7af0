"""What a site's tables know of the things a detection names, for texts of messages. [CO-1]"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rapport.policy.compiler.compile import CompiledPolicy
from rapport.tables.tables import Tables

FindPolicy = Callable[[str, str], CompiledPolicy | None]
"""By policy and version."""


class SiteFacts:
    """Columns of the tables about an alias's concept: `{A.badge}` in the text of an action."""

    def __init__(self, tables: Tables, policies: FindPolicy | Mapping[str, CompiledPolicy]) -> None:
        """`policies`: those of a site, or who knows their versions while they come and go."""
        self._tables, self._policies = tables, policies
        self._columns = _tables_by_column(tables)
        self._revision = tables.revision

    def find(self, policy: str, version: str, alias: str, identity: str, column: str) -> str | None:
        """The text in the column of the row about this identity; None when there is none."""
        concept = self._concepts(policy, version).get(alias, "")
        table = self._by_column().get(concept, {}).get(column)
        return None if table is None else self._tables.lookup(table, identity, column)

    def fields(self, policy: str) -> list[str]:
        """Everything a text may ask for about the policy's aliases."""
        found: list[str] = []
        for alias, concept in self._concepts(policy, "").items():
            found.append(alias)
            found += [f"{alias}.{column}" for column in self._by_column().get(concept, {})]
        return found

    def _concepts(self, policy: str, version: str) -> dict[str, str]:
        """Concepts by alias."""
        known = self._policies
        compiled = known.get(policy) if isinstance(known, Mapping) else known(policy, version)
        if compiled is None:
            return {}
        return {concept.alias: concept.concept for concept in compiled.tree.concepts}

    def _by_column(self) -> dict[str, dict[str, str]]:
        """By concept and column the table that has it; found anew when tables changed."""
        revision = self._tables.revision
        if self._revision != revision:
            self._columns, self._revision = _tables_by_column(self._tables), revision
        return self._columns


def _tables_by_column(tables: Tables) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    headings = tables.columns()
    for table, declared in tables.declarations().items():
        for column in headings[table] if declared.concept else ():
            found.setdefault(declared.concept, {}).setdefault(column, table)
    return found
