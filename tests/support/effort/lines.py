"""Lines and tokens of code and of declarations, by what they are for. [ME-15]

Blank lines, comments, docstrings and imports do not count, as the source leaves out what an editor
writes by itself. Python is cut by `tokenize`; declarations by words, texts and single signs.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

Part = Literal["types", "conversions", "transformation"]
"""What the words mean; how values are calculated; what becomes what, and where."""
PARTS: tuple[Part, ...] = ("types", "conversions", "transformation")

_SILENT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)
_TOKEN = re.compile(r'"[^"]*"|[\w.%/-]+|[^\w\s]')
_PART_OF_KEY: dict[str, Part] = {
    "types": "types",
    "conversions": "conversions",
    "functions": "conversions",
}
_PART_OF_MODULE: dict[str, Part] = {"conversions": "conversions", "functions": "conversions"}


class Line(NamedTuple):
    """A line that somebody had to write."""

    part: Part
    text: str
    tokens: int


def lines_of(path: Path) -> list[Line]:
    """The lines of a file that count."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return list(_python(text, _PART_OF_MODULE.get(path.stem, "transformation")))
    readers = {".toml": _toml, ".yaml": _yaml, ".xml": _xml}
    return [
        Line(part, line.strip(), len(_TOKEN.findall(line)))
        for part, line in readers[path.suffix](text)
    ]


def _python(text: str, usual: Part) -> Iterator[Line]:
    tree = ast.parse(text)
    left_out = {row for node in ast.walk(tree) if _is_silent(node) for row in _rows(node)}
    parts = _parts(tree, usual)
    tokens: Counter[int] = Counter()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            tokens[token.start[0]] += 1
    for row, line in enumerate(text.splitlines(), 1):
        if tokens[row] and row not in left_out:
            yield Line(parts.get(row, usual), line.strip(), tokens[row])


def _is_silent(node: ast.AST) -> bool:
    """A docstring or an import."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _parts(tree: ast.Module, usual: Part) -> dict[int, Part]:
    """Rows of a module that declares by annotations: classes are types, `maps_to` transforms,
    labelled functions and what they need convert.
    """
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    found: dict[int, Part] = {}
    if usual != "transformation" or not classes:
        return found
    for statement in tree.body:
        part: Part = "conversions"
        if isinstance(statement, ast.ClassDef) or "NewType" in ast.unparse(statement):
            part = "types"
        found |= dict.fromkeys(_rows(statement), part)
    for each in classes:
        for decorator in each.decorator_list:
            is_label = ast.unparse(decorator).startswith("context(")
            found |= dict.fromkeys(_rows(decorator), "types" if is_label else "transformation")
    return found


def _rows(node: ast.AST) -> range:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])  # type: ignore[attr-defined]
    return range(first, node.end_lineno + 1)  # type: ignore[attr-defined]


def _toml(text: str) -> Iterator[tuple[Part, str]]:
    part: Part = "transformation"
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            keys = line.strip("[] ").split(".")
            part = _PART_OF_KEY.get(keys[2] if len(keys) > 2 else "", "transformation")
        yield part, line


def _yaml(text: str) -> Iterator[tuple[Part, str]]:
    part: Part = "transformation"
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        depth = len(line) - len(line.lstrip())
        if depth <= 4:
            part = _PART_OF_KEY.get(line.strip().rstrip(":"), "transformation")
        yield part, line


def _xml(text: str) -> Iterator[tuple[Part, str]]:
    part: Part = "transformation"
    for line in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).splitlines():
        name = line.strip().strip("</>")
        if not line.strip():
            continue
        if name in _PART_OF_KEY and not line.strip().startswith("</"):
            part = _PART_OF_KEY[name]
        yield part, line
        if name in _PART_OF_KEY and line.strip().startswith("</"):
            part = "transformation"
