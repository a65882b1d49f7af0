"""What a site's tables know of the things a detection names, for texts of messages. [CO-1]"""

from __future__ import annotations

from collections.abc import Mapping

from rapport.kernel.toml import TomlFile
from rapport.policy.compiler.compile import Compiled
from rapport.tables.tables import Tables


class SiteFacts:
    """Columns of the tables about an alias's concept: `{A.badge}` in the text of an action."""

    def __init__(self, file: TomlFile, tables: Tables, policies: Mapping[str, Compiled]) -> None:
        self._tables = tables
        self._concepts = {
            name: {concept.alias: concept.concept for concept in compiled.tree.concepts}
            for name, compiled in policies.items()
        }
        self._columns: dict[str, dict[str, str]] = {}
        headings = tables.columns()
        for table, section in file.section("tables").sections():
            concept = str(section.values.get("concept", ""))
            for column in headings.get(table, ()) if concept else ():
                self._columns.setdefault(concept, {}).setdefault(column, table)

    def find(self, policy: str, alias: str, identity: str, column: str) -> str | None:
        """The text in the column of the row about this identity; None when there is none."""
        concept = self._concepts.get(policy, {}).get(alias, "")
        table = self._columns.get(concept, {}).get(column)
        return None if table is None else self._tables.lookup(table, identity, column)

    def fields(self, policy: str) -> list[str]:
        """Everything a text may ask for about the policy's aliases."""
        found: list[str] = []
        for alias, concept in self._concepts.get(policy, {}).items():
            found.append(alias)
            found += [f"{alias}.{column}" for column in self._columns.get(concept, {})]
        return found
