"""docs/how-to/ensembles-in-a-site.md: what it declares is sound as it stands. [EN-14, UX-2]"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rapport.ensemble.runtime.program import load_program
from rapport.kernel.toml import TomlFile
from rapport.site.ensemble import EnsembleDeclared, ensemble_from_site

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "ensembles-in-a-site.md"
TEXT = PAGE.read_text(encoding="utf-8")
SITES = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
(PROGRAM,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ensemble-keys.toml").touch()
    (tmp_path / "hall.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def declared(text: str, folder: Path) -> EnsembleDeclared:
    file = TomlFile.parse(text.encode(), name="site.toml")
    found, problems = ensemble_from_site(file, folder, list(file.section("sources").values), "s")
    assert problems == []
    assert found is not None
    return found


@pytest.mark.parametrize("number", range(len(SITES)))
def test_every_site_of_the_page_is_sound(folder: Path, number: int) -> None:
    declared(SITES[number], folder)


def test_the_sites_of_the_page_say_what_it_says(folder: Path) -> None:
    first, readings, feeds, carried, meanings = (declared(text, folder) for text in SITES)
    assert (first.record_ms, first.settings.gossip.knowledge_ms) == (10_000, 1_000)
    assert readings.ties.readings[0].of.role == "Driver"
    assert (len(feeds.ties.feeds), len(feeds.ties.published), len(feeds.ties.read)) == (1, 1, 1)
    assert carried.ties.carried[0].source == "readers"
    assert meanings.meanings is not None
    assert meanings.meanings.accept == ("yard",)


def test_the_device_of_the_page_runs(folder: Path) -> None:
    program = load_program(folder / "hall.py", "device")
    (reader,) = program.components
    assert reader.id == "reader-8"
    reader.backlog.close()
