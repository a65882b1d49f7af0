"""`rapport context keys`: from the first key to its successor. [CX-9]"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rapport.cli.context_keys import app
from rapport.cli.main import run
from rapport.core.errors import InvalidInput, SiteError, UnknownName
from rapport.kernel.clock import SystemClock
from rapport.transport.keys import load_keys, read_key_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "context-keys.toml"


def keys(*arguments: object) -> None:
    words = [str(argument) for argument in arguments]
    app(words, exit_on_error=False, print_error=True, result_action="return_value")


def test_a_made_key_is_told_by_its_id_and_its_secret_by_nothing(file, capsys) -> None:
    keys("make", file, "brokers", "--kind", "network")
    keys("make", file, "ann")
    keys("list", file)
    keys("list", file, "--json")
    said = capsys.readouterr()
    network, ann = read_key_file(file).keys
    assert said.out.splitlines()[:2] == [network.id, ann.id]
    assert "secret" not in said.out + said.err
    for key in (network, ann):
        line = next(one for one in file.read_text().splitlines() if one.startswith("secret"))
        assert line[10:-1] not in said.out + said.err
        assert key.secret.hex() not in said.out + said.err
    listed = json.loads(said.out.splitlines()[-1])
    assert [(one["owner"], one["kind"], one["state"]) for one in listed] == [
        ("ann", "client", "seals"),
        ("brokers", "network", "seals"),
    ]
    assert load_keys(file).is_member


def test_the_next_key_waits_for_its_time_and_the_old_one_is_retired(file, capsys) -> None:
    keys("make", file, "brokers", "--kind", "network")
    old = capsys.readouterr().out.strip()
    keys("make", file, "brokers", "--kind", "network", "--from", "1h")
    new = capsys.readouterr().out.strip()
    keys("retire", file, old, "--at", "2 hours")
    keys("list", file)
    states = {line.split("\t")[0]: line.split("\t")[5] for line in _lines(capsys)[1:]}
    assert states == {old: "seals", new: "to come"}
    ring, now_ms = load_keys(file), SystemClock().now_ms()
    assert ring.sealing(now_ms)[0].id == old
    assert ring.sealing(now_ms + 2 * 3_600_000)[0].id == new
    keys("retire", file, new)
    keys("list", file)
    assert _lines(capsys)[1:][-1].split("\t")[5] in ("ended", "seals")
    after_ms = SystemClock().now_ms() + 2  # the one above may be long ago on a busy machine
    assert not any(key.id == new and key.is_valid_at(after_ms) for key in load_keys(file))


def test_a_client_gets_its_own_keys_only(file, tmp_path) -> None:
    keys("make", file, "brokers", "--kind", "network")
    keys("make", file, "ann")
    keys("share", file, "ann", tmp_path / "ann.toml")
    assert [key.owner for key in load_keys(tmp_path / "ann.toml")] == ["ann"]


def test_faults_are_told_with_their_codes(file, tmp_path) -> None:
    for arguments, kind, code in [
        (("list", file), InvalidInput, "settings.no_secret"),
        (("make", file, "an owner"), InvalidInput, "keys.bad_key"),
        (("make", file, "ann", "--from", "soon"), InvalidInput, "time.bad_time"),
    ]:
        with pytest.raises(kind) as found:
            keys(*arguments)
        assert found.value.code == code
    keys("make", file, "ann")
    with pytest.raises(UnknownName):
        keys("retire", file, "0" * 16)
    with pytest.raises(UnknownName):
        keys("share", file, "anna", tmp_path / "other.toml")
    file.write_text("[[keys]]\n")
    with pytest.raises(SiteError):
        keys("list", file)


def test_it_is_a_part_of_rapport_context(file, capsys) -> None:
    assert run(["context", "keys", "make", str(file), "ann"]) == 0
    assert load_keys(file).own == "ann"
    assert run(["context", "keys", "list", str(file.with_name("none.toml"))]) == 2
    assert "settings.no_secret" in capsys.readouterr().err


def _lines(capsys) -> list[str]:
    return capsys.readouterr().out.splitlines()
