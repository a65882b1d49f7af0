"""Scripts of the site as queries: named, given values, counted, and never code from outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rapport.channel.query import query_kinds as script
from rapport.channel.query.query_kinds import Script, Scripts, load_scripts, make_query, run_limited
from rapport.channel.requests.request import BatchLimits
from rapport.channel.requests.scanner import Selection
from rapport.core.errors import InvalidInput, UnknownName
from rapport.core.event import Event, StoredEvent

BUSY = """
def busy(stored, arguments):
    people = stored.event.payload()["people"]
    return len(set(people)) >= arguments.get("least", 2)

def endless(stored, arguments):
    while True:
        try:
            pass
        except Exception:
            pass

def broken(stored, arguments):
    return 1 / 0
"""
NAMES = ("busy", "endless", "broken")


def stored(people: list[str], *, kind: str = "desk.used", position: int = 1) -> StoredEvent:
    data = ('{"people": [' + ", ".join(f'"{name}"' for name in people) + "]}").encode()
    return StoredEvent(position, 7, Event("s", str(position), kind, "", 5, data))


SCRIPTS = Scripts()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/busy.py").write_text(BUSY)
    SCRIPTS.use(load_scripts({name: f"scripts/busy.py:{name}" for name in NAMES}, tmp_path))
    return tmp_path


def test_a_request_names_a_script_and_hands_it_values(site: Path) -> None:
    query = make_query("script", {"name": "busy", "arguments": {"least": 3}}, scripts=SCRIPTS)
    assert not query.matches(stored(["a", "b"]))
    assert query.matches(stored(["a", "b", "c"]))
    again = make_query("script", query.text, scripts=SCRIPTS)
    assert again.text == query.text
    assert again.matches(stored(["a", "b", "c"]))


def test_where_chooses_the_messages_a_script_is_asked_about(site: Path) -> None:
    given = {"name": "busy", "where": "type='desk.used' and position > 5"}
    query = make_query("script", given, scripts=SCRIPTS)
    assert query.bounds.after == 5
    assert query.condition is not None
    assert query.matches(stored(["a", "b"], position=6))
    assert not query.matches(stored(["a", "b"], kind="other", position=6))
    assert "type = 'desk.used'" in query.text


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"name": "bussy"}, "query.unknown_script"),
        ({"name": "busy", "arguments": [1]}, "query.bad_query"),
        ({"name": "busy", "code": "import os"}, "query.bad_query"),
        ({"arguments": {}}, "query.bad_query"),
        ("busy()", "query.bad_query"),
        ({"name": "busy", "where": "typ = 'a'"}, "query.unknown_field"),
        ({"name": "__import__('os').system('true')"}, "query.unknown_script"),
        ({"name": "busy", "version": "0"}, "query.script_changed"),
    ],
)
def test_a_wrong_request_is_refused(site: Path, given: Any, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make_query("script", given, scripts=SCRIPTS)
    assert caught.value.code == code


def test_a_token_of_a_changed_script_is_refused(site: Path) -> None:
    query = make_query("script", {"name": "busy"}, scripts=SCRIPTS)
    (site / "scripts/busy.py").write_text(BUSY + "\n# better\n")
    SCRIPTS.use(load_scripts({"busy": "scripts/busy.py:busy"}, site))
    with pytest.raises(InvalidInput) as caught:
        query.matches(stored(["a", "b"]))
    assert caught.value.code == "query.script_changed"


def test_a_query_that_is_sent_again_as_text_asks_the_changed_script(site: Path) -> None:
    assert make_query("script", '{"name": "busy"}', scripts=SCRIPTS).matches(stored(["a", "b"]))
    (site / "scripts/busy.py").write_text("def busy(stored, arguments):\n    return False\n")
    SCRIPTS.use(load_scripts({"busy": "scripts/busy.py:busy"}, site))
    assert not make_query("script", '{"name": "busy"}', scripts=SCRIPTS).matches(stored(["a", "b"]))


def test_an_endless_script_is_stopped_by_counting(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "MOST_LINES", 1_000)
    query = make_query("script", {"name": "endless"}, scripts=SCRIPTS)
    with pytest.raises(InvalidInput) as caught:
        query.matches(stored([]))
    assert caught.value.code == "query.script_too_long"


def test_a_script_that_fails_is_the_request_s_fault(site: Path) -> None:
    query = make_query("script", {"name": "broken"}, scripts=SCRIPTS)
    selection = Selection(query, BatchLimits(10, 0), 0, None)
    with pytest.raises(InvalidInput) as caught:
        selection.add([stored([])])
    assert caught.value.code == "query.failed"


def test_the_nearest_script_is_named() -> None:
    scripts = Scripts()
    scripts.use({"busy": Script(lambda stored, arguments: True, "1")})
    with pytest.raises(UnknownName) as caught:
        scripts.get("bsy")
    assert "busy" in caught.value.hint
    assert run_limited(scripts.get("busy").decide, stored([]), {}) is True


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("busy", "does not name"),
        ("scripts/busy.py", "does not name"),
        ("scripts/none.py:busy", "cannot be read"),
        ("scripts/busy.py:none", "no function"),
        ("scripts/wrong.py:f", "does not run"),
        ("../busy.py:f", "lies in the site"),
        ("/etc/x.py:f", "lies in the site"),
    ],
)
def test_a_wrong_declaration_is_refused(site: Path, reference: str, message: str) -> None:
    (site / "scripts/wrong.py").write_text("def f(:")
    with pytest.raises(InvalidInput, match=message):
        load_scripts({"busy": reference}, site)
