"""A site of stations, and lint of a policy about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from rapport.core.errors import Problem
from rapport.policy.compiler.compile import CompiledPolicy, compile_policy
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.lint.instances import TableCandidates, lint_instances
from rapport.policy.ontology import Ontology, PushSource, Relationship, SiteFunction
from rapport.tables.instances import Instances
from support.varied.worlds import Pull

HEADER = """concepts
  station S
  room R
conditions
{conditions}
actions
  raise alarm
"""


def text_column(*values: str | None) -> Any:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def source(attribute: str, **options: Any) -> PushSource:
    return PushSource(
        name=f"{attribute}s",
        concept="station",
        attribute=attribute,
        key="key",
        value=("value",),
        **options,
    )


class Tables(Pull):
    """Keeps the columns of a table without rows, as real tables do."""

    def __init__(self, instances: dict[str, Instances]) -> None:
        super().__init__(instances)
        self._known = instances

    def instances(self, concept: str) -> Instances:
        return self._known[concept]


class Stations:
    """An ontology that a test may change, tables, and what lint says."""

    def __init__(self) -> None:
        self.ontology = Ontology(
            concepts={
                "station": {
                    "temperature": "number",
                    "humidity": "number",
                    "position": "point",
                    "kind": "text",
                    "floor": "number",
                },
                "room": {"area": "rectangle", "level": "number", "use": "text"},
            },
            relationships={
                "inside": Relationship(
                    "inside", ("station", "position"), ("room", "area"), "inside"
                ),
                "same": Relationship("same", ("station", "kind"), ("room", "use"), "same"),
            },
            sources={each.name: each for each in map(source, ("temperature", "humidity"))}
            | {"positions": source("position")},
            functions={
                "distance": SiteFunction(
                    name="distance",
                    of=(("station", "position"), ("station", "position")),
                    measure="distance",
                    unit="m",
                )
            },
        )
        self.instances = {
            "station": Instances(
                "station",
                ["s1", "s2", "s3"],
                {
                    "kind": text_column("mast", "buoy", None),
                    "floor": np.array([1.0, 4.0, np.nan]),
                },
            ),
            "room": Instances(
                "room",
                ["r1"],
                {
                    "area": np.array([[0.0, 0, 1, 1]]),
                    "level": np.array([9.0]),
                    "use": text_column("office"),
                },
            ),
        }

    def give(self, attribute: str, **options: Any) -> None:
        sources = self.ontology.sources | {f"{attribute}s": source(attribute, **options)}
        self.ontology = msgspec.structs.replace(self.ontology, sources=sources)

    def compile(self, text: str, name: str = "p") -> CompiledPolicy:
        return compile_policy(text, name=name, ontology=self.ontology, window_ms=5_000)

    def says(self, *lines: str, header: str = HEADER) -> list[Problem]:
        """What the compiler's lint says of these conditions, unused aliases aside."""
        found = self.compile(header.format(conditions="\n".join(f"  {line}" for line in lines)))
        return [one for one in found.problems if one.code != "policy.unused_alias"]

    def says_with_tables(self, *lines: str, header: str = HEADER) -> list[Problem]:
        """What the tables add to that."""
        text = header.format(conditions="\n".join(f"  {line}" for line in lines))
        compiled, faults = self.compile(text), Diagnostics("p", text)
        candidates = TableCandidates(Tables(self.instances))
        lint_instances(compiled.tree, compiled.plan, candidates, faults)
        return list(faults.problems())


@pytest.fixture
def stations() -> Stations:
    return Stations()


@pytest.fixture
def codes() -> Callable[[Sequence[Problem]], list[str]]:
    """The codes of problems, without the room's name."""
    return lambda problems: [problem.code.removeprefix("policy.") for problem in problems]
