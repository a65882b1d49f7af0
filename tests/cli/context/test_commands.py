"""`rapport context ...` as a new user types it. [CX-3, CX-8, CX-9]"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rapport.cli.main import run
from rapport.transport.addresses import format_address
from support.processes.context import BrokerProcess
from support.servers.ports import free_port

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that keeps what it is told."""
    with BrokerProcess(directory=tmp_path_factory.mktemp("broker") / "log") as running:
        yield running


@pytest.fixture
def to(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its address, which the commands find by themselves."""
    address = format_address(broker.address)
    monkeypatch.setenv("RAPPORT_CONTEXT_BROKER", address)
    return address


@pytest.mark.slow
def test_what_is_provided_can_be_requested(to: str, capsys: Captured) -> None:
    told = ["open=true", "people=3", "name=Blue room", "at=[1,2]", "code='007'"]
    assert run(["context", "provide", "room/r3", "status", *told, "--valid", "1min"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "stored; valid until" in said.err
    assert run(["context", "request", "room/r3", "status"]) == 0
    said = capsys.readouterr()
    rows = dict(line.split("\t") for line in said.out.splitlines())
    assert rows["open"] == "true"
    assert rows["name"] == "Blue room"
    assert "0 hops away" in said.err
    assert run(["context", "request", "room/r3", "status", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["values"] == {
        "open": True,
        "people": 3,
        "name": "Blue room",
        "at": [1, 2],
        "code": "007",
    }
    assert (answer["provider"], answer["hops"], answer["broker"]) == ("local", 0, to)


@pytest.mark.slow
def test_a_fresh_request_passes_by_the_copies_on_its_way(to: str, capsys: Captured) -> None:
    with BrokerProcess() as second:
        there = ["--broker", format_address(second.address)]
        assert run(["context", "join", format_address(second.address), to]) == 0
        provide = ["context", "provide", "room/fresh", "status", "n=1", "--valid", "1min"]
        assert run(provide) == 0
        request = ["context", "request", "room/fresh", "status", "--json", *there]
        hops = []
        for words in (request, request, [*request, "--fresh"]):
            capsys.readouterr()
            assert run(words) == 0
            hops.append(json.loads(capsys.readouterr().out)["hops"])
        assert hops == [1, 0, 1]


@pytest.mark.slow
def test_what_is_not_there_is_said_with_exit_code_one(to: str, capsys: Captured) -> None:
    assert run(["context", "request", "room/none", "status", "--within", "300ms"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "context.not_found" in said.err


@pytest.mark.slow
def test_a_subscription_prints_each_change_until_it_has_enough(to: str, capsys: Captured) -> None:
    command = [sys.executable, "-m", "rapport.cli.main", "context"]
    provide = [*command, "provide", "room/s", "status", "n=1", "--valid", "9s", "--every", "200ms"]
    with subprocess.Popen(provide, stderr=subprocess.DEVNULL) as telling:
        assert run(["context", "subscribe", "room/s", "status", "--count", "3", "--json"]) == 0
        telling.terminate()
        assert telling.wait(10) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["values"] for line in lines] == [{"n": 1}] * 3
    starts = [line["valid_from"] for line in lines]
    assert starts == sorted(set(starts))


@pytest.mark.slow
def test_the_past_is_read_beside_the_running_broker(
    to: str, broker: BrokerProcess, capsys: Captured
) -> None:
    for n in range(3):
        arguments = ["context", "provide", "room/past", "status", f"n={n}", "--valid", "2s"]
        assert run(arguments) == 0
    capsys.readouterr()
    directory = str(broker._directory)
    assert run(["context", "history", "room/past", "--directory", directory, "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["values"]["n"] for line in lines] == [0, 1, 2]
    wanted = ["--since", "1h", "--scope", "light"]
    assert run(["context", "history", "room/past", *wanted, "--directory", directory]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "provided\tscope\tprovider\tvalid from\tvalid until\tvalues"
    ]


@pytest.mark.slow
def test_brokers_are_joined_seen_and_left(to: str, capsys: Captured) -> None:
    with BrokerProcess() as other:
        there = format_address(other.address)
        assert run(["context", "join", there, to]) == 0
        assert run(["context", "monitor", there]) == 0
        capsys.readouterr()
        assert run(["context", "status", there, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["neighbours"][0]["address"] == to
        assert run(["context", "status", to]) == 0
        assert f"neighbour {there}" in capsys.readouterr().out
        assert run(["context", "leave", there]) == 0
        assert run(["context", "join", there, "127.0.0.1:9"]) == 1
        assert "context.not_joined" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["request", "room", "status"], "room/r3"),
        (["provide", "room/r3", "status", "open", "--valid", "30s"], "open=true"),
        (["provide", "room/r3", "status", "a=1", "--valid", "soon"], "30s|5s"),
        (
            ["provide", "room/r3", "s", "a=1", "--valid", "9s", "--every", "3s", "--from", "2h"],
            "leave out --from",
        ),
        (["broker", "--listen", "192.0.2.7:7411"], "rapport context keys make"),
        (["request", "room/r3", "status", "--broker", "192.0.2.7:7411"], "--keys"),
        (["request", "room/r3", "status", "--broker", "nonsense"], "127.0.0.1:7411"),
        (["broker", "--keys", "/no/such/file"], "/no/such/file"),
        (["history", "room/r3", "--directory", "/no/such/directory"], "--directory"),
    ],
)
def test_wrong_use_is_told_with_what_to_write_instead(
    arguments: list[str], told: str, capsys: Captured
) -> None:
    assert run(["context", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert any(one in said.err for one in told.split("|"))


def test_a_broker_that_is_not_there_is_said(capsys: Captured) -> None:
    arguments = ["--broker", "127.0.0.1:9", "--within", "300ms"]
    assert run(["context", "request", "room/r3", "status", *arguments]) == 1
    assert "context.no_broker" in capsys.readouterr().err


@pytest.mark.slow
def test_a_foreign_client_is_answered_where_v0_is_turned_on(capsys: Captured) -> None:
    plain = free_port()
    with BrokerProcess(options=("--v0", f"127.0.0.1:{plain}")) as broker:
        there = ["--broker", format_address(broker.address)]
        provide = ["context", "provide", "city/poa", "weather", "wind=3", "--valid", "1min"]
        assert run([*provide, *there]) == 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.settimeout(5)
            stranger.sendto(b"3|0|city|poa|weather", ("127.0.0.1", plain))
            heard = [stranger.recv(2_000).split(b"|")[0] for _ in range(2)]
    assert heard == [b"5", b"4"]


@pytest.mark.slow
def test_a_key_added_to_the_file_is_taken_up_by_a_running_broker(
    tmp_path: Path, capsys: Captured
) -> None:
    keys, ana = tmp_path / "keys.toml", tmp_path / "ana.toml"
    assert run(["context", "keys", "make", str(keys), "brokers", "--kind", "network"]) == 0
    with BrokerProcess(keys=keys) as broker:
        assert run(["context", "keys", "make", str(keys), "ana"]) == 0
        assert run(["context", "keys", "share", str(keys), "ana", str(ana)]) == 0
        there = ["--broker", format_address(broker.address), "--keys", str(ana)]
        command = ["context", "provide", "room/r3", "status", "n=1", "--valid", "1min", *there]
        for _ in range(3):
            if run(command) == 0:
                break
        assert run(["context", "request", "room/r3", "status", "--json", *there]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["provider"] == "ana"
