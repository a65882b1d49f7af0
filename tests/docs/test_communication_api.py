"""docs/how-to/communication-api.md: its programs run, print what it says, and are well typed.
[CO-15]
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "communication-api.md"
PROGRAM = re.compile(r"```python\n(.*?)```\n```text\n(.*?)```\n", re.DOTALL)
PROGRAMS = PROGRAM.findall(PAGE.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize(("program", "said"), PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_of_the_page_prints_what_the_page_says(
    program: str, said: str, tmp_path: Path
) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    printed = "\n".join(line.rstrip() for line in ran.stdout.splitlines())
    assert (ran.returncode, printed) == (0, said.rstrip().replace(" \n", "\n")), ran.stderr


def test_there_are_programs_with_and_without_asyncio() -> None:
    assert len(PROGRAMS) == 4
    assert sum("asyncio.run" in program for program, _said in PROGRAMS) == 3


@pytest.mark.slow
def test_the_programs_are_well_typed(tmp_path: Path) -> None:
    files = [tmp_path / f"program{number}.py" for number, _ in enumerate(PROGRAMS)]
    for file, (program, _said) in zip(files, PROGRAMS, strict=True):
        file.write_text(program, encoding="utf-8")
    checked = subprocess.run(
        [
            # With the options of `./run check`, so that what it knows of the package is known here.
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml"),
            *map(str, files),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
