"""The committed build of the console is that of its sources, and its texts are whole."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rapport.web.console import PAGE
from tools.console_api import api_document

UI = Path(__file__).parents[2] / "ui"
_LEFT_OUT = ("node_modules", "openapi.json")


def source_digest(root: Path) -> str:
    """The same as `digest.mjs` computes."""
    whole = hashlib.sha256()
    paths = [
        (path.relative_to(root).as_posix(), path)
        for path in root.rglob("*")
        if path.is_file() and not {*path.relative_to(root).parts} & {*_LEFT_OUT}
    ]
    for name, path in sorted(paths):
        whole.update(f"{name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def test_the_build_is_of_these_sources() -> None:
    built = (PAGE / "sources.sha256").read_text().strip()
    assert built == source_digest(UI), "run `npm ci && npm run build` in ui/ and commit the result"


def test_both_languages_have_the_same_texts_and_every_text_is_used() -> None:
    english, german = (
        json.loads((UI / "src" / "texts" / f"{language}.json").read_text())
        for language in ("en", "de")
    )
    assert english.keys() == german.keys()
    gaps = {key: set(re.findall(r"\{\w+\}", text)) for key, text in english.items()}
    assert gaps == {key: set(re.findall(r"\{\w+\}", text)) for key, text in german.items()}
    code = "".join(
        path.read_text() for path in (UI / "src").rglob("*") if path.suffix in (".svelte", ".ts")
    )
    families = set(re.findall(r"`([a-z.]+)\.\$\{", code))  # `fate.${state}`
    unused = [
        key
        for key in english
        if f'"{key}"' not in code and not any(key.startswith(f"{one}.") for one in families)
    ]
    assert unused == []


def test_the_lock_file_names_no_addresses() -> None:
    lock = json.loads((UI / "package-lock.json").read_text())
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]


@pytest.mark.slow
def test_building_again_gives_the_committed_files(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    root = tmp_path / "repository"
    ui, built = root / "ui", root / "src" / "rapport" / "web" / "console"
    shutil.copytree(UI, ui, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    built.mkdir(parents=True)
    installed = subprocess.run(
        [npm, "ci", "--no-progress"], cwd=ui, capture_output=True, timeout=200
    )
    if installed.returncode:
        pytest.skip("the packages of the build cannot be had here")
    (ui / "openapi.json").write_text(api_document())
    for script in ("types", "check", "build"):
        done = subprocess.run([npm, "run", script], cwd=ui, capture_output=True, timeout=200)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    assert (ui / "src" / "api.d.ts").read_bytes() == (UI / "src" / "api.d.ts").read_bytes()
    assert {path.name: path.read_bytes() for path in built.iterdir()} == {
        path.name: path.read_bytes() for path in PAGE.iterdir()
    }
