"""What a process must not load: import-linter follows written imports only, this looks at what
happened.
"""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def modules(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def loaded(statement: str) -> set[str]:
    return {name.split(".")[0] for name in modules(statement)}


@pytest.mark.parametrize("module", ["rapport.node.node", "rapport.node.wiring", "rapport.web.app"])
def test_a_node_does_not_load_spark(module: str) -> None:
    assert not {"pyspark", "py4j", "pandas"} & loaded(f"import {module}")


def test_a_node_without_ensembles_does_not_load_what_runs_them() -> None:
    names = modules("import rapport.node.wiring, rapport.node.metrics, rapport.web.app")
    assert "rapport.node.wiring" in names
    assert not {"rapport.node.ensemble", "rapport.ensemble.runtime.ensemble_node"} & names


def test_the_command_line_loads_little_before_it_knows_the_command() -> None:
    names = loaded("import rapport.cli.main")
    assert not {"pyspark", "litestar", "uvicorn", "pyarrow", "numpy", "duckdb", "pint"} & names
