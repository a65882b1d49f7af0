"""A data directory written by an earlier release opens, gives the same answers and goes on.

`tests/data/before/site.tar.xz` is a secure building whose node was killed while it ran, with log,
records, indexes and lake; `answers.json` is what the release of that time said about it.
"""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from support.processes.node import NodeProcess

pytestmark = pytest.mark.slow

KEPT = Path(__file__).parents[1] / "data" / "before"
MESSAGE = "3e2418c33f6c4674fa046b5ea8db7e74"
REPORT = b'{"reader": "r7", "tag": "E200-34", "dx": 1.0, "dy": 2.0, "t": "2026-11-18T08:40:00Z"}'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    with lzma.open(KEPT / "site.tar.xz") as packed, tarfile.open(fileobj=packed) as archive:
        if hasattr(tarfile, "data_filter"):  # not in the first releases of Python 3.11
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path)
    return tmp_path / "site"


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((KEPT / "answers.json").read_text())
    return found


def rapport(site: Path, *arguments: str) -> list[Any]:
    """What a command prints as JSON, one value a line."""
    done = subprocess.run(
        [sys.executable, "-m", "rapport.cli.main", *arguments, "--site", str(site), "--json"],
        capture_output=True,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def counts(site: Path) -> dict[str, int]:
    (rows,) = rapport(site, "read")
    return {row["channel"]: row["events"] for row in rows}


def assert_holds(found: Any, recorded: Any) -> None:
    """Everything that was recorded is there; later releases may say more."""
    if isinstance(recorded, dict):
        for key, value in recorded.items():
            assert_holds(found[key], value)
    elif isinstance(recorded, list):
        assert len(found) == len(recorded)
        for one, other in zip(found, recorded, strict=True):
            assert_holds(one, other)
    else:
        assert found == recorded


def test_it_gives_the_same_answers(site: Path, answers: dict[str, Any]) -> None:
    assert counts(site) == answers["counts"]
    assert rapport(site, "read", "events") == answers["events"]
    (ledger,) = rapport(site, "ledger")
    assert [{key: row[key] for key in answers["ledger"][0]} for row in ledger] == answers["ledger"]
    (explained,) = rapport(site, "explain", MESSAGE)
    assert_holds(explained, answers["explain"])


def test_a_node_goes_on_where_the_old_one_was_killed(site: Path, answers: dict[str, Any]) -> None:
    with NodeProcess(site) as node:
        node.start()
        assert node.doors is not None
        host, port = node.doors
        request = urllib.request.Request(
            f"http://{host}:{port}/sources/readers",
            REPORT,
            {"content-type": "application/json"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status < 300
        node.stop()
    after = counts(site)
    assert after["raw.readers"] == answers["counts"]["raw.readers"] + 1
    old = answers["events"]
    assert rapport(site, "read", "events")[: len(old)] == old
    same = [name for name in answers["counts"] if name.startswith("output.")]
    assert {name: after[name] for name in same} == {name: answers["counts"][name] for name in same}
