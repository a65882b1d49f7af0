"""Measures the shape of the product's source and checks its words.

Prints one table: size, names, comments, how many modules have a single user, and how many modules
one reading meets on its walk. Fails only where a class or a file name stands twice within a
package, and where a word of `tools/words.txt` is used.

    python tools/house.py            the table, and what is wrong
    python tools/house.py --packages a line for each package
    python tools/house.py --names    names that look like bare participles
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "rapport"
WORDS = Path(__file__).with_name("words.txt")
WALK = ROOT / "docs" / "walk.md"


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


ROLE_NAMES = frozenset({"Settings"})
"""Class names that siblings of one kind may share, such as each adapter's settings."""
ROLE_FILES = frozenset({"__init__", "__main__", "base", "settings", "commands"})
UNFINISHED = frozenset({"pipeline"})
"""Packages whose names are not checked yet: this one is rebuilt as a whole."""

IRREGULAR_PARTICIPLES = words(
    "Told Held Said Heard Kept Made Seen Known Sent Left Lost Met Given Found Taken Written Chosen "
    "Drawn Shown Known Bound Built Born Fed Felt Gone Grown Hidden Led Meant Paid Run Sold Sought "
    "Spoken Spread Stood Thought Understood Won Brought Caught Come Done Put Set Cut"
)
FIELD_WORDS = words(
    "Feed Need Seed Speed Embed Shed Thread Bed Ring String Thing Spring Setting Mapping Binding "
    "Reading Timing Ordering Encoding Building Warning Heading Pairing Meeting Mailing Rating "
    "Finding Recording Sighting wiring spelling run Spread Wording wording "
    "mapping binding encoding timing routing ring string logging polling streaming scheduling "
    "testing caching indexing grouping mediation membership mailing"
)
"""Words of the field that only look like participles."""

FIXED_NAMES = words(
    "Sent Confirmed Failed "  # what an adapter's author returns
    "Put "  # a change of a record store, and the command of the context protocol
    "Cut "  # a conversion that interpretations name
    "Published "  # a schema of the HTTP interface
    "Carried Collecting Confirming Sharing Wishing Grouping Grouped "  # sent as roles and ensembles
)
"""Class names that are part of a fixed interface."""


class Module:
    """One source file: its name, its text and what it defines and imports."""

    def __init__(self, path: Path) -> None:
        relative = path.relative_to(SOURCE)
        self.path = path
        self.package = relative.parts[0] if len(relative.parts) > 1 else ""
        names = list(relative.with_suffix("").parts)
        self.is_package = names[-1] == "__init__"
        if self.is_package:
            names.pop()
        self.name = ".".join(["rapport", *names])
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text)
        self.lines = self.text.count("\n")

    def classes(self) -> list[str]:
        """Names of its top-level classes without a leading underscore."""
        return [
            node.name
            for node in self.tree.body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        ]

    def imported(self, modules: frozenset[str]) -> set[str]:
        """Names of the product's modules that this one imports."""
        found: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names} & modules
            elif isinstance(node, ast.ImportFrom) and node.module:
                submodules = {f"{node.module}.{alias.name}" for alias in node.names} & modules
                found |= submodules or ({node.module} & modules)
        return found - {self.name}

    def comments(self) -> int:
        """Lines that are or end with a comment."""
        return sum(1 for line in self.text.splitlines() if re.search(r"(^|\s)#[ :]", line))


def looks_like_participle(name: str) -> bool:
    """A single word such as `Told`, `asking` or `Wanted`; a head noun (`TakenMessage`) makes it a
    name.
    """
    if name in FIELD_WORDS | FIXED_NAMES or re.search(r"[a-z][A-Z]|_", name):
        return False
    return name.capitalize() in IRREGULAR_PARTICIPLES or bool(re.search(r"[a-z](ed|ing)$", name))


def duplicates(modules: list[Module]) -> list[str]:
    """Class and file names that stand twice within one package."""
    faults = []
    for package in sorted({module.package for module in modules} - UNFINISHED):
        mine = [module for module in modules if module.package == package]
        files = Counter(module.path.stem for module in mine if module.path.stem not in ROLE_FILES)
        classes: dict[str, list[str]] = defaultdict(list)
        for module in mine:
            for name in module.classes():
                if name not in ROLE_NAMES:
                    classes[name].append(module.name)
        faults += [
            f"{package}: {n} files are called {name}.py" for name, n in files.items() if n > 1
        ]
        faults += [
            f"{package}: class {name} stands in {', '.join(places)}"
            for name, places in classes.items()
            if len(places) > 1
        ]
    return faults


def _packages_of(rule: str) -> tuple[frozenset[str], str]:
    """The packages that a rule names in brackets before its pattern, none for all; the pattern."""
    named = re.match(r"\[([a-z ]+)\] ", rule)
    return (words(named[1]), rule[named.end() :]) if named else (frozenset(), rule)


def forbidden_words(modules: list[Module]) -> list[str]:
    """Uses of the words that `tools/words.txt` replaces, with their places."""
    faults = []
    for line in WORDS.read_text(encoding="utf-8").splitlines():
        pattern, _, instead = line.partition(" -> ")
        if not instead or line.startswith("#"):
            continue
        only, pattern = _packages_of(pattern)
        found = re.compile(pattern)
        chosen = (each for each in modules if each.package not in UNFINISHED)
        for module in (each for each in chosen if not only or each.package in only):
            for number, text in enumerate(module.text.splitlines(), 1):
                if found.search(text):
                    place = module.path.relative_to(ROOT)
                    faults.append(f"{place}:{number}: {pattern!r}: say {instead}")
    return faults


def modules_of_walk() -> int | None:
    """How many modules one reading meets, as `docs/walk.md` has recorded it."""
    if not WALK.exists():
        return None
    found = re.search(r"^(\d+) modules", WALK.read_text(encoding="utf-8"), re.MULTILINE)
    return int(found[1]) if found else None


def print_table(modules: list[Module], twice: list[str]) -> None:
    """One screen: the state of the house."""
    names = frozenset(module.name for module in modules)
    users: Counter[str] = Counter()
    for module in modules:
        users.update(module.imported(names))
    sizes = sorted(module.lines for module in modules if module.lines)
    lines = sum(sizes)
    classes = [name for module in modules for name in module.classes()]
    code = [module for module in modules if not module.is_package]
    participles = [name for name in classes if looks_like_participle(name)]
    stems = [module.path.stem for module in code if looks_like_participle(module.path.stem)]
    single = sum(1 for module in code if users[module.name] == 1)
    comments = sum(module.comments() for module in modules)
    rows = [
        ("lines in src/rapport", f"{lines:,}"),
        ("files in src/rapport", f"{len(modules):,}"),
        ("file, median / p90 / max lines",
         f"{median(sizes):.0f} / {sizes[len(sizes) * 9 // 10]} / {sizes[-1]}"),
        ("names used twice within a package", f"{len(twice)}"),
        ("classes that are bare participles", f"{len(participles)} of {len(classes):,}"),
        ("modules that are bare participles", f"{len(stems)} of {len(code):,}"),
        ("modules used by one other module", f"{100 * single / len(code):.0f} %"),
        ("comments per 100 lines", f"{100 * comments / lines:.1f}"),
        ("modules that one reading meets", str(modules_of_walk() or "not recorded")),
    ]  # fmt: skip
    for what, figure in rows:
        print(f"{what:40} {figure:>20}")


def print_packages(modules: list[Module], twice: list[str]) -> None:
    """Files, lines and names used twice, for each package."""
    for package in sorted({module.package for module in modules}):
        mine = [module for module in modules if module.package == package]
        count = sum(1 for fault in twice if fault.startswith(f"{package}:"))
        lines = sum(module.lines for module in mine)
        print(f"{package or '(top)':16} {len(mine):5} files {lines:8,} lines {count:5} names twice")


def main(arguments: list[str]) -> int:
    """Prints what is asked for; 1 when a rule is broken."""
    modules = [Module(path) for path in sorted(SOURCE.rglob("*.py"))]
    twice = duplicates(modules)
    if "--packages" in arguments:
        print_packages(modules, twice)
        return 0
    if "--names" in arguments:
        for module in modules:
            found = [name for name in module.classes() if looks_like_participle(name)]
            if looks_like_participle(module.path.stem) or found:
                print(module.path.relative_to(ROOT), *found)
        return 0
    print_table(modules, twice)
    faults = [*twice, *forbidden_words(modules)]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
