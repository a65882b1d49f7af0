"""Measures on our own files what transformations cost by hand and declared: table 4.2 of the
source, for its five applications. [ME-15]

    python -m support.effort.table           prints the tables
    python -m support.effort.table --write   writes docs/concepts/mediation-effort.md
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rapport.mediation.plans import ConvertStep, EachStep, ObjectStep, Plan, Step, VariantsStep
from support.effort.lines import PARTS, Line, Part, lines_of
from support.effort.uses import uses_by_hand

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples/mediation"
PAGE = ROOT / "docs/concepts/mediation-effort.md"

SIDES = {"by hand": "by_hand", "declared": "declared"}
APPLICATIONS = {
    "supply_chain": "SPECjms2007",
    "market_data": "Marketcetera",
    "highway": "HTM",
    "architecture": "DRADEL",
    "emergency": "ERS",
}
PUBLISHED = {
    "supply_chain": (167, 15, 92, 22, 2, 1),
    "market_data": (108, 9, 37, 16, 2, 1),
    "highway": (237, 16, 133, 21, 2, 1),
    "architecture": (417, 16, 139, 30, 3, 2),
    "emergency": (351, 12, 117, 21, 3, 2),
}
"""Table 4.2: manual specify, change, add; ACTrESS specify, change, add."""
CHANGES = {"joined": "a participant joins", "changed": "a type changes", "added": "a type is added"}


class Size(NamedTuple):
    """How much there is."""

    lines: int
    tokens: int


class Edit(NamedTuple):
    """What one change asks for."""

    written: int
    """Lines that are new or other than before."""
    transformation: int
    """Those of them that are neither types nor conversions."""
    new_files: int
    touched: int
    """Files that were there before."""
    places: int
    """In those files."""
    to_read: int
    """Lines of those files as they were."""


class Reuse(NamedTuple):
    """Conversions, and the places where they work."""

    conversions: int
    reused: int
    """In more than one place."""
    places: int


def size(folder: Path, side: str, parts: Iterable[Part] = PARTS) -> Size:
    """Of everything that stands there at the start."""
    lines = [line for path in _files(folder, side, "start") for line in lines_of(path)]
    counted = [line for line in lines if line.part in parts]
    return Size(len(counted), sum(line.tokens for line in counted))


def edit(folder: Path, side: str, step: str) -> Edit:
    """The difference between the start and a step."""
    written: list[Line] = []
    new_files = touched = places = to_read = 0
    for path in _files(folder, side, step):
        former = folder / side / "start" / path.name
        before = lines_of(former) if former.exists() else []
        differences = list(_differences(before, lines_of(path)))
        written += [line for difference in differences for line in difference]
        if former.exists():
            touched, places, to_read = touched + 1, places + len(differences), to_read + len(before)
        else:
            new_files += 1
    transformation = sum(line.part == "transformation" for line in written)
    return Edit(len(written), transformation, new_files, touched, places, to_read)


def _differences(before: Sequence[Line], after: Sequence[Line]) -> Iterator[Sequence[Line]]:
    """Of each place the lines to be written, or to be taken away where those are more."""
    old, new = ([line.text for line in lines] for lines in (before, after))
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind != "equal":
            yield after[begin:end] if end - begin >= last - first else before[first:last]


def reuse_declared(folder: Path) -> Reuse:
    """Conversions that the transformers of the start apply, and where."""
    harness = load_harness()
    application = harness.Application(folder, "start")
    mediated = harness.Mediated(application)
    application.play(mediated, 1_000)
    found: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for (name, kind, direction), transformer in mediated.transformers.items():
        for path, conversion in _applied(transformer.plan) if transformer else ():
            found.setdefault((name, conversion), set()).add((kind, direction, path))
    reused = sum(len(places) > 1 for places in found.values())
    return Reuse(len(found), reused, sum(map(len, found.values())))


def reuse_by_hand(folder: Path) -> Reuse:
    """Names of `conversions.py` that are used, and uses that somebody wrote."""
    uses = uses_by_hand(_files(folder, "by_hand", "start"))
    return Reuse(len(uses), sum(number > 1 for number in uses.values()), sum(uses.values()))


def _applied(plan: Plan) -> Iterator[tuple[str, str]]:
    """Paths and the names of the conversions applied there."""
    for stage in plan.stages:
        yield from _steps(stage)


def _steps(step: Step) -> Iterator[tuple[str, str]]:
    if isinstance(step, ConvertStep):
        yield step.path, step.conversion.name
    elif isinstance(step, EachStep):
        yield from _steps(step.step)
    elif isinstance(step, VariantsStep):
        for case in step.cases:
            yield from _steps(case.step)
    elif isinstance(step, ObjectStep):
        for part in step.parts:
            yield from _steps(part.step)
        for shape, conversion in step.shape:
            if conversion is not None:
                yield f"{step.path} {shape}", conversion.name


def _files(folder: Path, side: str, step: str) -> list[Path]:
    found = (path for path in (folder / side / step).iterdir() if path.is_file())
    return sorted(path for path in found if path.suffix in (".py", ".toml", ".yaml", ".xml"))


def load_harness() -> Any:
    """The module of the examples that plays an application both ways."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module("both_ways")


def tables() -> dict[str, str]:
    """All tables of the page by name."""
    return {"source": _source(), "whole": _whole(), "changes": _changes(), "reuse": _reuse()}


def _source() -> str:
    rows = []
    for name, title in APPLICATIONS.items():
        folder = EXAMPLES / name
        cells = [f"`{name}` ({title})"]
        for number, side in enumerate(SIDES.values()):
            published = PUBLISHED[name][3 * number :]
            measured = [size(folder, side, ["transformation"]).lines]
            measured += [edit(folder, side, step).transformation for step in ("changed", "added")]
            cells += [f"{one} ({other})" for one, other in zip(measured, published, strict=False)]
        rows.append(cells)
    sides = [f"{side}: {word}" for side in SIDES for word in ("specify", "change", "add")]
    return _table(["application", *sides], rows)


def _whole() -> str:
    rows = []
    for name in APPLICATIONS:
        for side, folder in SIDES.items():
            sizes = [size(EXAMPLES / name, folder, [part]) for part in PARTS]
            whole = Size(*map(sum, zip(*sizes, strict=True)))
            cells = [f"`{name}`", side, *(f"{each.lines}" for each in sizes)]
            rows.append([*cells, f"{whole.lines}", f"{whole.tokens}"])
    return _table(["application", "", *PARTS, "all lines", "all tokens"], rows)


def _changes() -> str:
    rows = []
    for name in APPLICATIONS:
        for step, about in CHANGES.items():
            edits = [edit(EXAMPLES / name, side, step) for side in SIDES.values()]
            rows.append([f"`{name}`", about, *(cell for each in edits for cell in _edit(each))])
    heads = [f"{side}: {word}" for side in SIDES for word in ("written", "files", "to read")]
    return _table(["application", "", *heads], rows)


def _edit(found: Edit) -> Iterator[str]:
    yield str(found.written)
    places = f"{found.places} place{'s' if found.places != 1 else ''}"
    touched = f"{found.touched} in {places}" if found.touched else ""
    new = f"{found.new_files} new" if found.new_files else ""
    yield ", ".join(filter(None, (touched, new)))
    yield str(found.to_read)


def _reuse() -> str:
    rows = []
    for name in APPLICATIONS:
        folder = EXAMPLES / name
        both = (reuse_by_hand(folder), reuse_declared(folder))
        rows.append([f"`{name}`", *(str(number) for reuse in both for number in reuse)])
    words = ("conversions", "used again", "places")
    return _table(["application", *(f"{side}: {word}" for side in SIDES for word in words)], rows)


def _table(heads: list[str], rows: list[list[str]]) -> str:
    ruled = ["---" if not head or head == "application" else "--:" for head in heads]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, ruled, *rows))


def page_with(made: dict[str, str], page: str) -> str:
    """The page with its tables made anew, between `<!-- NAME -->` and `<!-- end -->`."""
    for name, table in made.items():
        begin, end = f"<!-- {name} -->\n", "<!-- end -->"
        before, found, after = page.partition(begin)
        if not found or end not in after:
            raise ValueError(f"the page has no place for the table {name!r}")
        page = f"{before}{begin}{table}\n{end}{after.partition(end)[2]}"
    return page


def main(arguments: Sequence[str]) -> int:
    """Prints the tables, or writes them into the page."""
    if list(arguments) not in ([], ["--write"]):
        print("usage: python -m support.effort.table [--write]", file=sys.stderr)
        return 2
    made = tables()
    if arguments:
        PAGE.write_text(page_with(made, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print("\n\n".join(made.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
