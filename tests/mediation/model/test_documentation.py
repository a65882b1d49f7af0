"""docs/concepts/interpretations.md says what is so."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs/concepts/interpretations.md"


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {})
    assert "def transform(event)" in capsys.readouterr().out


def test_every_code_of_the_page_stands_in_the_sources() -> None:
    sources = "".join(
        path.read_text() for path in (PAGE.parents[2] / "src/rapport/mediation").rglob("*.py")
    )
    problems = PAGE.read_text().partition("## Problems")[2]
    named = [code for code in re.findall(r"`([a-z]+\.[a-z_]+)`", problems)]
    assert len(named) > 25
    for code in named:
        kind, _, last = code.partition(".")
        assert code in sources or (last == "duplicate" and f'"{kind}"' in sources), code
