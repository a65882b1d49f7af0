"""`rapport ensemble`: what is refused, what is shown. [EN-10]"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rapport.cli.main import PROBLEMS, WRONG_USE
from rapport.cli.main import run as rapport
from rapport.ensemble.runtime.serving import EnsembleNode
from rapport.kernel.chance import Chance
from rapport.kernel.clock import SystemClock
from rapport.transport.addresses import format_address


@contextmanager
def running_node() -> Iterator[str]:
    """A node in a thread, until the end; its address."""
    found: list[str] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        node = await EnsembleNode.open(
            "lonely", listen=("127.0.0.1", 0), clock=SystemClock(), chance=Chance()
        )
        found.append(format_address(node.address))
        ready.set()
        await asyncio.to_thread(over.wait)
        await node.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(10)
        yield found[0]
    finally:
        over.set()
        thread.join()


def test_a_running_node_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with running_node() as address:
        assert rapport(["ensemble", "status", address]) == 0
        assert rapport(["ensemble", "status", address, "--json"]) == 0
    *shown, told = capsys.readouterr().out.splitlines()
    assert f"address\t{address}" in shown
    assert json.loads(told)["node"] == "lonely"


@pytest.mark.slow
def test_where_no_node_runs_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert rapport(["ensemble", "status", "127.0.0.1:9"]) == PROBLEMS
    assert "no node answered at 127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "192.0.2.7:7"], "there are no keys"),
        (["--join", "192.0.2.7:7"], "there are no keys"),
        (["--listen", "nowhere"], "is not an address"),
        ([], "no such file"),
    ],
    ids=["listen", "join", "address", "file"],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rapport(["ensemble", "run", str(tmp_path / "cars.py"), *options]) == WRONG_USE
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_file_that_is_no_trace_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text("nothing\n")
    assert rapport(["ensemble", "check-trace", str(file)]) == WRONG_USE
    assert "line 1" in capsys.readouterr().err


@pytest.mark.slow
def test_membership_is_measured_the_same_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["ensemble", "membership", "--nodes", "5", "--deaths", "1", "--json"]
    assert rapport(command) == rapport(command) == 0
    first, again = capsys.readouterr().out.splitlines()
    assert first == again
    assert json.loads(first)["detection"][0]["false_positives"] == 0
