"""Logs: what an error says of its place, and what it must not say."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import structlog

from rapport.kernel.telemetry import configure_logs, get_logger


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def _fail_and_log(shown: str) -> None:
    opened = shown.upper()
    try:
        raise ValueError(len(opened))
    except ValueError:
        get_logger(__name__).exception("request failed")


@pytest.mark.parametrize("json", [False, True])
def test_traces_tell_the_place_and_no_values(
    json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logs(json=json)
    _fail_and_log("a-secret-of-somebody")
    written = capsys.readouterr().err
    assert "request failed" in written
    assert "_fail_and_log" in written
    assert "ValueError: 20" in written
    assert "somebody" not in written.lower()


def test_a_trace_is_one_line_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(json=True)
    _fail_and_log("x")
    entry = msgspec.json.decode(capsys.readouterr().err)
    assert "_fail_and_log" in entry["exception"]
    assert entry["level"] == "error"


def test_fields_that_speak_of_secrets_are_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs()
    get_logger(__name__).warning("seen", bearer_token="abc123", address="here")
    written = capsys.readouterr().err
    assert "abc123" not in written
    assert "here" in written
