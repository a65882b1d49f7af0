"""What comes along with the client's package, seen in a fresh interpreter. [CH-5, ME-9]"""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

SERVER = {
    "litestar",
    "uvicorn",
    "httpx2",
    "sqlite3",
    "psycopg",
    "pyspark",
    "pyarrow",
    "duckdb",
    "rapport.node",
    "rapport.site",
    "rapport.web",
    "rapport.policy",
    "rapport.communication",
    "rapport.tables",
    "rapport.channel.backends",
    "rapport.channel.log.channels",
}


def _loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_publishing_and_listening_load_neither_mediation_nor_numbers() -> None:
    loaded = _loaded_by("from rapport.client import Listener, Publisher")
    assert sorted(loaded & (SERVER | {"numpy", "rapport.mediation"})) == []


def test_a_mediator_comes_without_the_node() -> None:
    loaded = _loaded_by("from rapport.client import Mediator")
    assert "rapport.mediation.outgoing.client_mediator" in loaded
    assert sorted(loaded & SERVER) == []


def test_a_name_that_the_client_has_not_is_told_as_usual() -> None:
    import rapport.client

    with pytest.raises(AttributeError, match="has no attribute 'Mediatr'"):
        _ = rapport.client.Mediatr


def test_what_tools_are_told_of_types_is_what_is_there() -> None:
    import rapport.client

    stub = Path(rapport.client.__file__).with_suffix(".pyi").read_text()
    told = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    assert len(told) == len(ast.parse(stub).body)
    for node in told:
        (alias,) = node.names
        found = getattr(import_module(node.module or ""), alias.name)
        assert alias.asname == alias.name
        assert found is getattr(rapport.client, alias.name)
    assert sorted(node.names[0].name for node in told) == sorted(rapport.client.__all__)
