"""`rapport init`: where it can make a site, and what it says where it cannot."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from rapport.cli.main import run
from rapport.node.node import Node
from rapport.site import check
from support.running import play

FOUND = {
    "empty": {"high": 1},
    "building": {"alone": 1},
    "home": {"door-open": 1, "silent": 1, "too-warm": 1},
    "air": {"dusty": 1, "exhaust": 1},
    "duty": {"call-out": 1},
}
LASTING = {
    "home": {"door-open": 13, "silent": 30, "too-warm": 25},
    "air": {"dusty": 52 * 60},
    "duty": {"call-out": 5},
}
"""How many minutes the situation of a policy lasts."""
Read = pytest.CaptureFixture[str]


@pytest.mark.parametrize("template", [*FOUND, "secure-building"])
def test_a_new_site_of_every_template_passes_the_check_without_a_word(
    tmp_path: Path, template: str, capsys: Read
) -> None:
    assert run(["init", str(tmp_path / "new"), "--template", template]) == 0
    capsys.readouterr()
    assert run(["check", "--site", str(tmp_path / "new")]) == 0
    assert capsys.readouterr().err == "no problems found\n"


@pytest.mark.parametrize("template", FOUND)
def test_every_template_can_be_played_at_once_and_is_short(
    tmp_path: Path, template: str, capsys: Read
) -> None:
    site = tmp_path / "new"
    assert run(["init", str(site), "--template", template]) == 0
    assert len((site / "site.toml").read_text().splitlines()) <= 40
    capsys.readouterr()
    assert run(["replay", "--site", str(site)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    begins = Counter(line["policy"] for line in lines if "began" not in line)
    assert begins == FOUND[template]
    ends = [line for line in lines if "began" in line]
    lengths = {line["policy"]: (line["time"] - line["began"]) / 60_000 for line in ends}
    assert lengths == LASTING.get(template, {})
    assert len(ends) == len(lengths)
    for policy in FOUND[template].keys() - lengths.keys():
        assert run(["backtest", policy, "--site", str(site), "--json"]) == 0
        assert str(FOUND[template][policy]) in capsys.readouterr().out


@pytest.mark.parametrize("template", FOUND)
def test_the_node_of_every_template_starts(tmp_path: Path, template: str) -> None:
    assert run(["init", str(tmp_path / "new"), "--template", template]) == 0

    async def nothing(node: Node) -> None:
        assert node.not_ready() == []

    play(tmp_path / "new", nothing)


def test_a_wrong_template_is_refused_with_those_there_are(tmp_path: Path, capsys: Read) -> None:
    assert run(["init", str(tmp_path / "new"), "--template", "hom"]) == 2
    assert "home" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_check_names_a_missing_driver_and_the_command_that_brings_it(
    tmp_path: Path, capsys: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "new"
    assert run(["init", str(site)]) == 0
    with (site / "site.toml").open("a") as file:
        file.write('[mqtt.house]\nbroker = "mqtt://127.0.0.1:1883"\n')
        file.write('[peers.panel]\naddresses = ["mqtt:panels/hall"]\n')
        file.write('[peers.cara]\naddresses = ["apprise:cara"]\n')
        file.write('[adapters.mqtt]\nbroker = "mqtt://127.0.0.1:1883"\n')
        file.write('[adapters.apprise.targets]\ncara = "env:CARA"\n')
        file.write('[channels.archive]\nlog = "nats"\n[channels.old]\nlog = "postgres"\n')
    monkeypatch.setattr(check, "find_spec", lambda _module: None)
    capsys.readouterr()
    assert run(["check", "--site", str(site)]) == 1
    shown = capsys.readouterr().err
    assert shown.count("error[site.missing_extra]") == 5
    for extra in ("mqtt", "notify", "nats", "postgres"):
        assert f"pip install 'rapport[{extra}]'" in shown


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_in_the_way_is_told(
    tmp_path: Path, below: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("mine")
    assert run(["init", str(tmp_path / "taken" / below)]) == 2
    assert "error[init.cannot_write]" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_directory_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    assert run(["init", str(tmp_path)]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
