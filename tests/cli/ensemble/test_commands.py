"""`rapport ensemble`: what is refused, what is shown. [EN-10]"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cyclopts import App

from rapport.cli.arguments import lab_command
from rapport.cli.main import PROBLEMS, WRONG_USE
from rapport.cli.main import run as rapport
from rapport.ensemble.runtime.ensemble_node import EnsembleNode
from rapport.ensemble.runtime.node_status import fetch_status
from rapport.ensemble.trace import Kind, NodeFacts, System, Trace
from rapport.ensemble.trace_files import write_trace
from rapport.kernel.clock import Chance, SystemClock
from rapport.transport.addresses import format_address
from rapport.transport.base import Address
from rapport_lab.ensemble.rules.recorded_traces import read_trace
from support.processes.ensemble_nodes import PROGRAM, node_process


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
def test_processes_record_traces_that_keep_the_rules_alone_and_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "cars.py"
    program.write_text(PROGRAM)
    files = {name: tmp_path / f"{name}.jsonl" for name in "ab"}
    first = node_process(program, "a", options=("--trace", str(files["a"])))
    with first:
        options = ("--trace", str(files["b"]))
        with node_process(program, "b", options=options, join=(first.address,)) as second:
            for one in (second, first):
                asyncio.run(until_both_are_known(one.address))
            assert second.stop() == 0
        assert first.stop() == 0
    for words in ([files["a"]], [files["b"]], [*files.values()]):
        assert rapport(["ensemble", "check-trace", *map(str, words)]) == 0, capsys.readouterr().out
    traces = [read_trace(file) for file in files.values()]
    for trace in traces:
        kinds = {event.kind for event in trace.events}
        assert {Kind.PUBLISHED, Kind.KNOWLEDGE_RECEIVED, Kind.REPLACED, Kind.STOPPED} <= kinds
    # What one of them forges is found out by what the other recorded, and by itself.
    events = [event for event in traces[1].events if event.kind is not Kind.KNOWLEDGE_SENT]
    write_trace(Trace(traces[1].system, events), files["b"])
    capsys.readouterr()
    assert rapport(["ensemble", "check-trace", *map(str, files.values())]) == PROBLEMS
    assert "rule 3: a message arrived that its sender did not send" in capsys.readouterr().out


def test_a_trace_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cars.py").write_text(PROGRAM)
    words = ["ensemble", "run", str(tmp_path / "cars.py"), "--trace", str(tmp_path / "no" / "t")]
    assert rapport(words) != 0
    assert "cannot be written" in capsys.readouterr().err


def test_two_traces_of_one_node_are_not_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(Trace(System(nodes={"a": NodeFacts()}), []), tmp_path / "a.jsonl")
    assert rapport(["ensemble", "check-trace", *[str(tmp_path / "a.jsonl")] * 2]) == WRONG_USE
    assert "two of the traces are of the node 'a'" in capsys.readouterr().err


async def until_both_are_known(address: Address) -> None:
    """Returns when the node knows a component of another."""
    clock, chance = SystemClock(), Chance.from_machine()
    async with asyncio.timeout(20):
        while not (await fetch_status(address, clock=clock, chance=chance)).replicas:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


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


def test_without_the_laboratory_its_commands_say_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rapport.cli.arguments.find_spec", lambda name: None)
    app = App(name="rapport")
    app.command(
        lab_command("rapport_lab.commands.experiment_command:experiment"), name="experiment"
    )
    monkeypatch.setattr("rapport.cli.main.app", app)
    assert rapport(["experiment", "all", "--quick"]) == PROBLEMS
    assert "pip install ./lab" in capsys.readouterr().err
