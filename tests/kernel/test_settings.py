from pathlib import Path

import pytest

from rapport.core.errors import InvalidInput
from rapport.kernel.settings import load_settings, read_secret
from rapport.kernel.toml import TomlFile


def section(text: str) -> object:
    return TomlFile.parse(text.encode(), name="site.toml").section("node")


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default() -> None:
    node = section("[node]\nport = 1\nhost = '127.0.0.2'\ndata = 'd'")
    settings = load_settings(
        node,  # type: ignore[arg-type]
        flags={"port": 3},
        environment={"RAPPORT_PORT": "2", "RAPPORT_HOST": "127.0.0.9"},
    )
    assert (settings.port, settings.host, settings.data, settings.max_batch) == (
        3,
        "127.0.0.9",
        "d",
        10_000,
    )


def test_a_wrong_variable_names_itself() -> None:
    with pytest.raises(InvalidInput, match="RAPPORT_PORT='many'"):
        load_settings(section(""), flags={}, environment={"RAPPORT_PORT": "many"})  # type: ignore[arg-type]


def test_secrets_come_from_files_or_the_environment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    monkeypatch.setenv("MAIL_PASSWORD", "other")
    assert read_secret("file:key", tmp_path) == "s3cret"
    assert read_secret("env:MAIL_PASSWORD", tmp_path) == "other"
    for text in ("s3cret", "file:absent", "env:ABSENT_VARIABLE"):
        with pytest.raises(InvalidInput):
            read_secret(text, tmp_path)
