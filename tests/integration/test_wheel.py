"""The package as people get it: the wheel in an empty environment. [UX-1]"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what git tracks, so that nothing else can get in."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(directory)]
    subprocess.run([*command, str(source)], check=True)
    return next(directory.glob("rapport-*.whl"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment that holds the wheel and what it needs, nothing else."""
    directory = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    pip = [str(directory / "bin" / "pip"), "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, str(wheel)], check=True)
    return directory / "bin"


def test_the_wheel_holds_license_and_security_policy_and_every_template(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("LICENSE", "SECURITY.md"):
        assert any(one.endswith(f"/{name}") for one in names), name
    for template in ("empty", "building", "home", "air", "duty"):
        assert f"rapport/scenarios/templates/{template}/site.toml" in names
    tracked = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src/rapport/scenarios/templates").rglob("*")
        if path.is_file()
    }
    assert tracked <= set(names)


def test_a_newcomer_makes_checks_runs_replays_and_backtests_a_site(
    environment: Path, tmp_path: Path
) -> None:
    def rapport(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(environment / "rapport"), *arguments],
            cwd=tmp_path,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "NO_COLOR": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
        return done

    rapport("init", "mine")
    assert rapport("check", "--site", "mine").stderr == "no problems found\n"
    detections = rapport("replay", "--site", "mine").stdout.splitlines()
    assert [json.loads(line)["policy"] for line in detections] == ["alone"]
    told = rapport("backtest", "alone", "--site", "mine", "--json").stdout
    assert json.loads(told)
    rapport("doctor", "--site", "mine")
    node = subprocess.Popen(
        [str(environment / "rapport"), "up", "--site", "mine", "--port", "0"],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "NO_COLOR": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert node.stderr is not None
        lines = iter(node.stderr.readline, "")
        url = next(found[1] for line in lines if (found := re.search(r"(http://\S+)", line)))
        with urllib.request.urlopen(f"{url}/readyz") as answer:
            assert answer.status == 200
    finally:
        node.terminate()
        assert node.wait(timeout=30) == 0
        node.stderr.close()
    assert not os.path.exists(tmp_path / "src")
