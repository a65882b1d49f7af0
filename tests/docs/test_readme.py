"""README's blocks run in order on a fresh clone and print what stands there. [UX-1, UX-8]"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import follow_page
from support.servers.ports import free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page uses curl")
def test_the_blocks_of_the_readme_run_in_order_on_a_fresh_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    shutil.copy(ROOT / "README.md", clone)
    # The environment that this test runs in stands for the one that ./run would make.
    (clone / ".venv").symlink_to(Path(sys.prefix), target_is_directory=True)
    project = b"".join((clone / each / "pyproject.toml").read_bytes() for each in ("", "lab"))
    stamp = subprocess.run(["cksum"], input=project, capture_output=True, check=True).stdout
    own = Path(sys.prefix) / ".installed-dev"
    if not own.exists() or own.read_bytes() != stamp:
        pytest.skip("the environment was not made by ./run")
    port = str(free_port())
    monkeypatch.setenv("RAPPORT_PORT", port)
    page = clone / "README.md"
    page.write_text(page.read_text(encoding="utf-8").replace("8484", port), encoding="utf-8")
    follow_page(page, clone, fewest=4)
    assert (clone / "my-site" / ".rapport").is_dir()
