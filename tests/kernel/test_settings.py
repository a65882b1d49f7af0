from pathlib import Path

import pytest

from rapport.core.errors import InvalidInput
from rapport.kernel.settings import (
    NodeSettings,
    check_settings,
    effective_data_directory,
    load_settings,
    read_secret,
)
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


@pytest.mark.parametrize(
    ("text", "flags", "environment", "named"),
    [
        ("[node]\nport = 70000", {}, {}, r"port in \[node\]"),
        ("[node]\nport = true", {}, {}, r"port in \[node\]"),
        ("[node]\nhost = 5", {}, {}, r"host in \[node\]"),
        ("", {"port": -1}, {}, "--port"),
        ("", {}, {"RAPPORT_MAX_BATCH": "0"}, "RAPPORT_MAX_BATCH"),
    ],
    ids=["file", "flag in file", "text", "flag", "variable"],
)
def test_a_value_out_of_bounds_names_where_it_stands(
    text: str, flags: dict[str, object], environment: dict[str, str], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        load_settings(section(text), flags=flags, environment=environment)  # type: ignore[arg-type]


def test_every_fault_of_a_file_is_found_at_its_line() -> None:
    text = "[node]\nport = 'abc'\ntoken_fil = 'x'\nmax_batch = 0\ndata = 1\nhost = '::1'"
    text += "\npublic_url = 'node.example.org'"
    found = check_settings(section(text))  # type: ignore[arg-type]
    assert sorted((one.line, one.code) for one in found) == [
        (2, "site.wrong_type"),
        (3, "site.unknown_key"),
        (4, "site.out_of_range"),
        (5, "site.wrong_type"),
        (7, "url.bad"),
    ]
    assert {one.severity for one in found} == {"error"}


def test_the_data_directory_alone_follows_the_environment_too() -> None:
    node = section("[node]\ndata = 'd'\nport = 'abc'")
    assert effective_data_directory(node, {}) == "d"  # type: ignore[arg-type]
    assert effective_data_directory(node, {"RAPPORT_DATA": "/var/lib/x"}) == "/var/lib/x"  # type: ignore[arg-type]
    assert effective_data_directory(section(""), {}) == NodeSettings().data  # type: ignore[arg-type]


@pytest.mark.parametrize(("host", "url"), [("::1", "http://[::1]:1"), ("a", "http://a:1")])
def test_where_the_doors_are(host: str, url: str) -> None:
    assert NodeSettings(host=host, port=1).local_url() == url


def test_a_secret_file_that_is_no_text_is_told_without_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match="it is not text"):
        read_secret("file:key", tmp_path)


def test_an_empty_secret_is_told_and_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With it a link would show no token, and what is pushed would go out without a seal."""
    (tmp_path / "key").write_text("\n")
    monkeypatch.setenv("PUSH_SECRET", "")
    for named in ("file:key", "env:PUSH_SECRET"):
        with pytest.raises(InvalidInput, match="is empty") as caught:
            read_secret(named, tmp_path)
        assert caught.value.code == "settings.no_secret"


def test_a_mark_of_the_encoding_is_no_part_of_a_secret(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\xef\xbb\xbfs3cret\r\n")
    assert read_secret("file:key", tmp_path) == "s3cret"
