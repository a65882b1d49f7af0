"""Which tests are left out of the fast ones because they take their time: measured, not guessed.

`./run check --measure` runs them all once and writes the list anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

_LONG_SECONDS = 0.1
"""A test of which one case takes longer is not fast."""
_LONG_TOGETHER_SECONDS = 0.5
"""Nor is one whose cases take longer all together."""
_HEAD = """\
# Tests that took a tenth of a second or more, or half a second with all their cases, when they were
# measured last (./run check --measure). ./run check leaves them out; ./run test runs them.
"""


def name_of(node: str) -> str:
    """A test without its case.

    >>> name_of("tests/a/test_b.py::test_c[1-x]")
    'tests/a/test_b.py::test_c'
    """
    return node.partition("[")[0]


def unhurried(took: Iterable[tuple[str, float]]) -> list[str]:
    """The names of tests that take their time, sorted; `took` are cases with what each phase of
    them took, in seconds.

    >>> unhurried([("a::b[1]", 0.02), ("a::c", 0.06), ("a::c", 0.05)])
    ['a::c']
    """
    cases: defaultdict[str, float] = defaultdict(float)
    for node, seconds in took:
        cases[node] += seconds
    together: defaultdict[str, float] = defaultdict(float)
    long = set()
    for node, seconds in cases.items():
        together[name_of(node)] += seconds
        if seconds >= _LONG_SECONDS:
            long.add(name_of(node))
    long.update(name for name, seconds in together.items() if seconds >= _LONG_TOGETHER_SECONDS)
    return sorted(long)


def read_names(path: Path) -> frozenset[str]:
    """The names in a list; none when there is no list."""
    if not path.exists():
        return frozenset()
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def write_names(path: Path, names: Iterable[str]) -> None:
    """Writes a list that `read_names` reads."""
    path.write_text(_HEAD + "".join(f"{name}\n" for name in names), encoding="utf-8")
