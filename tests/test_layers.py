"""The product imports nothing of the checkout around it. [UX-1]"""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
OUTSIDE = {"support", "benchmarks", "rapport_lab", "tools", "tests"}


def test_the_product_imports_neither_tests_nor_benchmarks_nor_the_laboratory() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            found = {name.partition(".")[0] for name in names} & OUTSIDE
            assert not found, f"{path.relative_to(SOURCE)} imports {', '.join(found)}"
