"""Privacy decided by functions: what their answers mean, and that every failure refuses."""

from __future__ import annotations

import pytest

from rapport.communication.people_config import function_fault
from rapport.communication.privacy import (
    AllowedDelivery,
    Hold,
    PrivacyFacts,
    PrivacyRule,
    Refuse,
    WorkerPrivacyFunctions,
    shown_facts,
    verdict,
)
from rapport.core.times import parse_time
from rapport.kernel.clock import SystemClock

NOW = parse_time("2026-01-10T23:30:00Z")
FACTS = PrivacyFacts(
    type="TASK", subtype="ask", sender="peer:ben", urgent=False, now_ms=NOW, peer="ana"
)
ASKS = PrivacyRule(ask="it", zone="Europe/Vienna")
FAILED = Refuse("the privacy function 'it' failed")


def said_by(function) -> object:
    return verdict([ASKS, PrivacyRule(reason="the next rule")], FACTS, {"it": function})


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, Refuse("the next rule")),
        (True, AllowedDelivery()),
        (False, Refuse("the receiver does not want it")),
        ("in a meeting\r\nBcc: x", Refuse("in a meeting  Bcc: x")),
        ("", Refuse("the receiver does not want it")),
        (NOW + 1, Hold(NOW + 1, "until it suits the receiver")),
        (NOW, FAILED),
        (NOW // 1000, FAILED),  # seconds
        (NOW * 1000, FAILED),
        (0, FAILED),
        (1.5, FAILED),
        ([True], FAILED),
        ({}, FAILED),
    ],
)
def test_what_a_function_answers_is_the_verdict_or_a_failure_that_refuses(answer, expected):
    assert said_by(lambda _told: answer) == expected


def test_a_function_that_raises_or_is_not_there_refuses_and_is_logged(capsys):
    def fails(_told):
        raise RuntimeError("the calendar is down")

    assert said_by(fails) == FAILED
    assert verdict([ASKS], FACTS, {}) == FAILED
    assert "the calendar is down" in capsys.readouterr().err


def test_a_function_gets_all_facts_but_the_content():
    told = shown_facts(ASKS, FACTS)
    assert told == {
        "peer": "ana",
        "type": "TASK",
        "subtype": "ask",
        "sender": "peer:ben",
        "urgent": False,
        "now_ms": NOW,
        "sent_ms": NOW,
        "zone": "Europe/Vienna",
        "local": "2026-01-11T00:30+01:00",
        "weekday": 6,
    }


def test_a_function_is_called_only_where_the_other_conditions_hold():
    asked = []
    rule = PrivacyRule(ask="it", types=("OTHER",))
    assert verdict([rule], FACTS, {"it": asked.append}) == AllowedDelivery()
    assert asked == []


SITE = """
import os, time

def at_weekends_no(told):
    return told["weekday"] < 5

def tomorrow(told):
    return told["now_ms"] + 86_400_000

def hangs(told):
    while True:
        pass

def dies(told):
    os._exit(3)

def raises(told):
    raise ValueError("no")
"""


@pytest.mark.slow
def test_functions_of_the_site_run_in_a_process_of_their_own(tmp_path):
    (tmp_path / "rules.py").write_text(SITE)
    functions = WorkerPrivacyFunctions(SystemClock(), (str(tmp_path),), deadline_ms=300)

    def ask(name: str) -> object:
        return verdict([PrivacyRule(ask=f"rules:{name}", zone="UTC")], FACTS, functions)

    try:
        assert ask("at_weekends_no") == Refuse("the receiver does not want it")
        assert ask("tomorrow") == Hold(NOW + 86_400_000, "until it suits the receiver")
        for name in ("raises", "hangs", "dies", "nothing_of_that_name"):
            assert ask(name) == Refuse(f"the privacy function 'rules:{name}' failed")
        assert ask("tomorrow") == Hold(NOW + 86_400_000, "until it suits the receiver")
        assert functions.fault_of("rules:tomorrow") == ""
        assert "cannot be loaded" in functions.fault_of("rules:nothing_of_that_name")
    finally:
        functions.close()
    assert isinstance(ask("tomorrow"), Refuse)


@pytest.mark.slow
def test_a_function_that_hung_is_not_waited_for_again_at_once(tmp_path):
    (tmp_path / "rules.py").write_text(SITE)
    clock = SystemClock()
    functions = WorkerPrivacyFunctions(clock, (str(tmp_path),), deadline_ms=300)
    hangs = PrivacyRule(ask="rules:hangs", zone="UTC")
    try:
        verdict([hangs], FACTS, functions)
        start_ns = clock.steady_ns()
        for _ in range(100):
            assert isinstance(verdict([hangs], FACTS, functions), Refuse)
        assert clock.steady_ns() - start_ns < 250_000_000
    finally:
        functions.close()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package that offers a privacy function, as pip would leave it."""
    (tmp_path / "their_calendar.py").write_text("def free(told):\n    return not told['urgent']\n")
    about = tmp_path / "their_calendar-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-calendar\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[rapport.privacy]\ncalendar = their_calendar:free\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_the_name_of_an_installed_function_is_known(installed):
    assert function_fault("calendar", installed) is None
    fault = function_fault("calender", installed)
    assert fault is not None
    assert (fault.code, fault.hint) == ("privacy.unknown_function", "did you mean 'calendar'?")


@pytest.mark.slow
def test_an_installed_function_decides(installed):
    functions = WorkerPrivacyFunctions(SystemClock(), (str(installed),))
    try:
        assert verdict([PrivacyRule(ask="calendar")], FACTS, functions) == AllowedDelivery()
    finally:
        functions.close()
