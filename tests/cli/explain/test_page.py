"""Every command of docs/how-to/explain.md prints what the page shows. [PO-11, UX-8]"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rapport.cli.main import run

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "explain.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```console\n\$ rapport (.*?)\n(.*?)```", PAGE, re.DOTALL)
FILES = {
    "toml": ["site.toml"],
    "csv": ["people.csv", "rooms.csv", "badges.csv", "masts.csv"],
    "dpl": ["alone.dpl", "heat.dpl"],
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for kind, names in FILES.items():
        blocks = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
        for name, text in zip(names, blocks, strict=True):
            (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_shows_three_questions() -> None:
    assert len(SHOWN) == 3


@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_a_command_prints_what_the_page_shows(
    site: Path, capsys: pytest.CaptureFixture[str], command: str, shown: str
) -> None:
    assert run(command.split()) == 1
    assert capsys.readouterr().out.rstrip() == shown.rstrip()
