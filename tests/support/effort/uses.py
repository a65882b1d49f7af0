"""Where hand-written code uses its conversions: every use was written by somebody. [ME-15]"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

CONVERSIONS = "conversions"


def uses_by_hand(files: Iterable[Path]) -> Counter[str]:
    """How often names imported from `conversions.py`, and functions of a module of its own that
    convert a part (`_address`), are used. The same name in two modules is two conversions.
    """
    found: Counter[str] = Counter()
    for path in files:
        if path.stem != CONVERSIONS:
            found.update(_uses(ast.parse(path.read_text(encoding="utf-8")), path.stem))
    return found


def _uses(tree: ast.Module, module: str) -> Iterable[str]:
    names = {name: name for name in _imported(tree)}
    for each in tree.body:
        if isinstance(each, ast.FunctionDef) and each.name.startswith("_"):
            names[each.name] = f"{module}.{each.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
            yield names[node.id]


def _imported(tree: ast.Module) -> Iterable[str]:
    for each in tree.body:
        if isinstance(each, ast.ImportFrom) and each.module == CONVERSIONS:
            yield from (name.name for name in each.names)
