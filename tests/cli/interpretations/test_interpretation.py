"""`rapport mediate`: on a site without a node, and through a running one.

[ME-6, ME-7, ME-12]
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rapport.cli.main import run
from support.processes.node import NodeProcess

SITE = """
[site]
name = "city"
[concepts.station.attributes]
temperature = "number"
[concepts.station.units]
temperature = "degC"
[sources.weather]
concept = "station"
attribute = "temperature"
interpretation = "us"
[interpretations.us]
units = { "station.temperature" = "degF" }
[node]
port = 9
"""
FRENCH = """
[interpretations.fr]
units = { "station.temperature" = "K" }
"""
MORE = """
[interpretations.root.types.Gust]
speed = "m/s"
"""
REPLACEMENT = """
[interpretations.root.types.Gale]
speed = "m/s"
town = { type = "text", optional = true }
[interpretations.root.conversions.forth]
from = "Gust"
to = "Gale"
rename = {}
[interpretations.root.conversions.back]
from = "Gale"
to = "Gust"
rename = { town = "place" }
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    directory = tmp_path / "site"
    directory.mkdir()
    (directory / "site.toml").write_text(SITE)
    return directory


class Command:
    """Runs commands on a site; JSON from stdout."""

    def __init__(self, site: Path, capfdbinary: Any, *more: str) -> None:
        self._site, self._capture, self._more = site, capfdbinary, more

    def __call__(self, *words: str, code: int = 0) -> Any:
        self._capture.readouterr()
        given = ["interpretation", *words, "--site", str(self._site), *self._more]
        assert run(given) == code, self._capture.readouterr().err.decode()
        self.out, self.err = (each.decode() for each in self._capture.readouterr())
        return json.loads(self.out) if self.out.startswith(("{", "[")) else self.out

    def file(self, name: str, text: str) -> str:
        path = self._site.parent / name
        path.write_text(text)
        return str(path)


def walk(command: Command) -> None:
    """Every command once, in an order that makes sense."""
    names = [row["name"] for row in command("list", "--json")["interpretations"]]
    assert names == ["root", "us"]
    french = command.file("fr.toml", FRENCH)
    assert list(command("check", french)["versions"]) == ["fr"]
    assert command("history", "--json") == []
    made = command("declare", french)
    assert "changed: fr@" in command.err
    assert command("show", "fr")["stamp"] == made["versions"]["fr"]
    assert not command("declare", french)["changed"]
    python = command("show", "us", "--type", "us station")
    assert "def transform" in python
    command("augment", command.file("more.toml", MORE))
    assert "Gust" in json.dumps(command("show", "root"))
    replaced = command("replace", "Gust", command.file("gale.toml", REPLACEMENT))
    assert "root" in replaced["versions"]
    command("remove", "fr")
    assert "fr (removed)" in command.err
    table = command("list")
    assert "fr" not in [line.split("\t")[0] for line in table.splitlines()]
    history = command("history", "--json")
    assert [each["what"][-1] for each in history] == [
        "declare fr",
        "augment root",
        "replace root",
        "remove fr",
    ]
    assert {each["state"] for each in history} == {"in force"}
    assert command("show", made["versions"]["fr"])["version"]["name"] == "fr"
    assert "declare fr" in command("history")


@pytest.mark.slow
def test_without_a_node_the_site_s_files_and_log_are_used(site: Path, capfdbinary: Any) -> None:
    walk(Command(site, capfdbinary))


@pytest.mark.slow
def test_with_a_node_everything_goes_through_it_and_outlives_a_kill(
    site: Path, capfdbinary: Any
) -> None:
    with NodeProcess(site) as node:
        node.start()
        command = Command(site, capfdbinary, "--url", url_of(node))
        walk(command)
        command("declare", command.file("it.toml", FRENCH.replace("fr", "it")))
        stamp = command("show", "it")["stamp"]
        node.kill()
        node.start()
        command = Command(site, capfdbinary, "--url", url_of(node))
        assert command("show", "it")["stamp"] == stamp
        refused(command)


def url_of(node: NodeProcess) -> str:
    assert node.doors is not None
    return "http://{}:{}".format(*node.doors)


def test_faults_are_told_at_their_place_and_change_nothing(site: Path, capfdbinary: Any) -> None:
    refused(Command(site, capfdbinary))


def refused(command: Command) -> None:
    before = command("list", "--json")
    command("remove", "us", code=1)
    assert "interpretation.in_use" in command.err
    command("remove", "uss", code=1)
    assert "did you mean 'us'?" in command.err
    wrong = FRENCH.replace('"K"', '"Kelwin"')
    command("declare", command.file("fr.toml", wrong), code=1)
    assert "error[unit.unknown]" in command.err
    command("check", command.file("fr.toml", wrong), code=1)
    command("declare", command.file("fr.json", "{}"), code=2)
    assert "change.not_a_change" in command.err
    command("declare", command.file("fr.csv", ""), code=2)
    command("declare", str(Path("nowhere.toml")), code=2)
    command("show", "uss", code=2)
    command("replace", "Nothing", command.file("gale.toml", REPLACEMENT), code=1)
    command("replace", "Nothing", command.file("fr.toml", FRENCH), code=1)
    assert "change.no_replacement" in command.err
    assert command("list", "--json") == before


PAGE = Path(__file__).parents[3] / "docs/how-to/change-interpretations.md"


def test_the_files_of_the_how_to_do_what_it_says(site: Path, capfdbinary: Any) -> None:
    command = Command(site, capfdbinary)
    files = dict(re.findall(r"```toml\n# (\w+\.toml)\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert list(files) == ["fr.toml", "badges.toml", "gust.toml", "gale.toml"]
    for words in (
        ("declare", "fr.toml"),
        ("declare", "badges.toml"),
        ("augment", "gust.toml"),
        ("replace", "Gust", "gale.toml"),
    ):
        *how, name = words
        assert command(*how, command.file(name, files[name]))["changed"]
    command("remove", "fr")
