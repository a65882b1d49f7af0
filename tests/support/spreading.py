"""How one run of all tests is spread over worker processes: files stay whole, the tests on Spark
have a process of their own, and what takes long begins first.

Spark uses a Java process and Python workers beside the process that tests it: one worker has nearly
all tests on Spark, one after the other, and then takes others like the rest. Files stay whole
because many start a server, and start it once.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]
from xdist.workermanage import WorkerController  # type: ignore[import-untyped]

SPARK = "all files with tests on Spark"
"""The name of the one unit of work that holds them."""
BESIDE = frozenset(
    {
        "tests/docs/test_history.py",
        "tests/pipeline/test_package.py",
        "tests/pipeline/test_session.py",
        "tests/walks/test_position_to_phone.py",
    }
)
"""Files that do much else, or start a Spark of their own: they are spread with the slow ones, since
the run would otherwise wait for the worker with Spark."""


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]
    """Spark first, then files with tests marked slow, then the others, each in the order of their
    paths. Reads the text of each test file once.
    """

    collection: list[str] | None
    """What all workers found; None before."""
    workqueue: dict[str, dict[str, bool]]
    """Units that nobody has yet: of each its tests, and whether they are done."""
    assigned_work: dict[WorkerController, dict[str, dict[str, bool]]]

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        self._root = Path(config.rootpath)
        self._ranks: dict[str, int] = {}

    def schedule(self) -> None:
        """Gives out the first files, as soon as all workers know the tests."""
        if self.collection is not None or not self._check_nodes_have_same_collection():
            super().schedule()
            return
        found = list(self.registered_collections[self.nodes[0]])
        self.collection = found
        self.workqueue.update(self._units(found))
        # Twice, as a worker starts a test only when it knows the next one, or that none comes.
        for node in [*self.nodes, *self.nodes]:
            self._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """A worker has ended, or broke: then the test it was at is named, and the rest of what it
        had goes to the others. That test is not tried again: it would break the next worker too.
        """
        had = self.assigned_work.pop(node)
        broken = next((test for unit in had.values() for test in unit if not unit[test]), None)
        if broken is not None:
            had[self._split_scope(broken)][broken] = True
            left = {name: unit for name, unit in had.items() if not all(unit.values())}
            self.workqueue.update(left)
            for other in self.nodes:
                self._reschedule(other)
        return broken

    def _units(self, tests: Iterable[str]) -> dict[str, dict[str, bool]]:
        """The tests of each unit, none of them done; the unit that begins first stands first."""
        units: dict[str, dict[str, bool]] = {}
        for test in tests:
            units.setdefault(self._split_scope(test), {})[test] = False
        return dict(sorted(units.items(), key=lambda unit: self._ranks.get(unit[0], 0)))

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        if file not in self._ranks:
            when = rank((self._root / file).read_text(encoding="utf-8"))
            self._ranks[file] = max(when, 1) if file in BESIDE else when
        return file if self._ranks[file] else SPARK


def rank(text: str) -> int:
    """When a file of tests begins, by its marks: 0 first, with Spark; 1 slow; 2 the others."""
    if "mark.spark" in text:
        return 0
    return 1 if "mark.slow" in text else 2
