"""The people's part of a site file: what is read, and every mistake at its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from rapport.communication.config import check_actions, communication_from_site
from rapport.communication.delivery_state import NextReceiver
from rapport.communication.privacy import DaySpan, quiet_rule
from rapport.kernel.toml import TomlFile

GOOD = """
[collectives.guards]
members = ["ana", "ben"]
delivery = "to-any"
[collectives.security-leads]
members = ["lea"]

[peers.ana]
addresses = ["mail:ana@example.org", "inbox:"]
zone = "Europe/Vienna"
quiet = "22:00-07:00"
[peers.ben]
addresses = ["webhook:https://example.org/hook?key=1"]
delivery = "preferred"
fallback = true
[peers.lea]
addresses = ["inbox:"]
quiet = "22:00-07:00"
on_quiet = "refuse"
zone = "UTC"

[actions."raise alarm"]
send_to = "collective:guards"
text = "Guest {A} alone in {R} at {time}"
urgent = true
answer_within = "60s"
escalate_to = ["collective:security-leads"]
[actions."write it down"]
send_to = "peer:lea"
text = "{policy}: {id}"
ttl = "1 hour"

[adapters.mail]
host = "mail.example.org"
port = 587
sender = "alarm@example.org"
user = "alarm"
password = "file:mail-password"
starttls = true
[adapters.webhook]
secret = "env:HOOK_SECRET"
timeout = "5s"
"""


def read(text, directory):
    return communication_from_site(TomlFile.parse(text.encode(), name="site.toml"), directory)


def test_a_whole_site_is_read_with_all_its_settings(tmp_path, monkeypatch):
    (tmp_path / "mail-password").write_text("hunter2\n")
    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    declared, problems = read(GOOD, tmp_path)
    assert problems == []
    assert declared.adapters() == ("inbox", "mail", "webhook")
    alarm = declared.actions["raise alarm"]
    assert alarm.done_when == "answered"
    assert alarm.answer_within_ms == 60_000
    assert alarm.escalate == (NextReceiver("collective:security-leads"),)
    assert declared.actions["write it down"].done_when == "sent"
    assert declared.actions["write it down"].ttl_ms == 3_600_000
    assert declared.media["mail"].password == "hunter2"
    assert declared.media["webhook"].secret == "s3cret"
    night = (DaySpan(22 * 60, 7 * 60),)
    assert declared.peers["ana"].privacy == (quiet_rule(night, "Europe/Vienna"),)
    assert declared.peers["lea"].privacy == (quiet_rule(night, "UTC", "refuse"),)
    assert declared.peers["ben"].privacy == ()
    assert declared.peers["ben"].fallback
    assert "hunter2" not in repr(declared)


def test_a_site_without_people_is_fine(tmp_path):
    declared, problems = read("[site]\nname = 'x'\n", tmp_path)
    assert problems == []
    assert declared.peers == declared.actions == {}


PERSON = '[peers.ana]\naddresses = ["inbox:"]\n'

WRONG = {
    "site.not_a_table ": ("peers = 3\n", 1, "[peers.NAME]"),
    "action.phrase_twice": (
        PERSON
        + '[actions."raise alarm"]\ntext = "x"\nsend_to = "peer:ana"\n'
        + '[actions."Raise  Alarm"]\ntext = "x"\nsend_to = "peer:ana"\n',
        6,
        "case",
    ),
    "message.bad_identifier  ": (
        PERSON + '[actions.alarm]\ntext = "x"\nsend_to = ""\n',
        5,
        "peer:NAME",
    ),
    "site.wrong_type    ": (PERSON + '[actions.alarm]\ntext = "x"\nsend_to = 1\n', 5, ""),
    "action.no_text ": (PERSON + '[actions.alarm]\ntext = ""\nsend_to = "peer:ana"\n', 4, "text"),
    "site.bad_duration ": (
        PERSON + '[actions.alarm]\ntext = "x"\nsend_to = "peer:ana"\nttl = "0s"\n',
        6,
        "",
    ),
    "site.wrong_type  ": (PERSON + "[adapters.mail]\nstarttls = 1\n", 4, ""),
    "site.wrong_type   ": (PERSON + "[adapters.mail]\nport = true\n", 4, ""),
    "message.bad_identifier ": (
        PERSON + '[actions.alarm]\ntext = "x"\nsend_to = ":"\n',
        5,
        "peer:NAME",
    ),
    "peer.no_address": ("[peers.ana]\n", 1, "inbox:"),
    "peer.no_address ": ("[peers.ana]\naddresses = []\n", 2, "inbox:"),
    "peer.bad_address": ('[peers.ana]\naddresses = ["mail:ana"]\n', 2, "someone@example.org"),
    "peer.bad_address ": ('[peers.ana]\naddresses = ["webhook:ftp://x"]\n', 2, "https://"),
    "peer.bad_address  ": ('[peers.ana]\naddresses = ["ana@example.org"]\n', 2, "mail:"),
    "peer.bad_address   ": ('[peers.ana]\naddresses = ["inbox:x"]\n', 2, "inbox:"),
    "peer.address_twice": ('[peers.ana]\naddresses = ["inbox:", "inbox:"]\n', 2, ""),
    "adapter.unknown": ('[peers.ana]\naddresses = ["mial:a@b.c"]\n', 2, "'mail'"),
    "adapter.unknown ": (PERSON + "[adapters.webhok]\n", 3, "'webhook'"),
    "site.unknown_key": (PERSON + 'quite = "22:00-07:00"\n', 3, "'quiet'"),
    "site.unknown_choice": (PERSON + 'delivery = "to-all-chanels"\n', 3, "'to-all-channels'"),
    "peer.fallback_without_preferred": (PERSON + "fallback = true\n", 3, ""),
    "peer.fallback_after_without_fallback": (
        PERSON + 'fallback_after = "20s"\n',
        3,
        "fallback = true",
    ),
    "peer.bad_quiet": (PERSON + 'zone = "UTC"\nquiet = "22-7"\n', 4, "22:00-07:00"),
    "peer.bad_zone": (PERSON + 'zone = "Europe/Wien"\n', 3, "Europe/Vienna"),
    "collective.empty": (PERSON + "[collectives.guards]\n", 3, "members"),
    "collective.unknown_member": (
        PERSON + '[collectives.guards]\nmembers = ["anna"]\n',
        4,
        "'ana'",
    ),
    "collective.member_twice": (
        PERSON + '[collectives.guards]\nmembers = ["ana", "ana"]\n',
        4,
        "",
    ),
    "site.wrong_type": ("[peers.ana]\naddresses = 7\n", 2, ""),
    "site.wrong_type ": ("[peers.ana]\naddresses = [1]\n", 2, ""),
    "site.not_a_table": ("[peers]\nana = 1\n", 2, "[peers.ana]"),
    "site.out_of_range": (PERSON + "[adapters.mail]\nport = 70000\n", 4, ""),
    "settings.bare_secret": (PERSON + '[adapters.mail]\npassword = "hunter2"\n', 4, ""),
    "settings.no_secret": (PERSON + '[adapters.mail]\npassword = "file:none"\n', 4, ""),
    "action.no_receiver": (PERSON + '[actions.alarm]\ntext = "x"\n', 3, "send_to"),
    "action.no_text": (PERSON + '[actions.alarm]\nsend_to = "peer:ana"\n', 3, "text"),
    "action.unknown_receiver": (
        PERSON + '[actions.alarm]\ntext = "x"\nsend_to = "peer:anna"\n',
        5,
        "'ana'",
    ),
    "message.bad_identifier": (
        PERSON + '[actions.alarm]\ntext = "x"\nsend_to = "ana"\n',
        5,
        "peer:NAME",
    ),
    "action.bad_receiver": (
        PERSON + '[actions.alarm]\ntext = "x"\nsend_to = "component:x"\n',
        5,
        "peer:NAME",
    ),
    "action.bad_template": (
        PERSON + '[actions.alarm]\ntext = "{A.__class__}"\nsend_to = "peer:ana"\n',
        4,
        "{ALIAS}",
    ),
    "action.bad_template ": (
        PERSON + '[actions.alarm]\ntext = "{A"\nsend_to = "peer:ana"\n',
        4,
        "{ALIAS}",
    ),
    "action.no_deadline": (
        PERSON + '[actions.alarm]\ntext = "x"\nsend_to = "peer:ana"\nescalate_to = ["peer:ana"]\n',
        6,
        "answer_within",
    ),
    "action.answer_not_awaited": (
        PERSON
        + '[actions.alarm]\ntext = "x"\nsend_to = "peer:ana"\nanswer_within = "5s"\n'
        + 'done_when = "sent"\n',
        6,
        "answered",
    ),
    "site.bad_duration": (
        PERSON + '[actions.alarm]\ntext = "x"\nsend_to = "peer:ana"\nanswer_within = "soon"\n',
        6,
        "5s",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_mistake_is_reported_at_its_line_with_a_hint(name, tmp_path):
    text, line, hint = WRONG[name]
    _, problems = read(text, tmp_path)
    errors = [problem for problem in problems if problem.severity == "error"]
    assert [(problem.code, problem.line) for problem in errors] == [(name.strip(), line)]
    assert hint in errors[0].hint
    assert errors[0].file == "site.toml"
    assert errors[0].message


def test_all_mistakes_are_reported_at_once(tmp_path):
    text = "".join(
        (
            "[peers.ana]\n",
            '[collectives.guards]\nmembers = ["anna"]\ndelivery = "any"\n',
            '[actions.alarm]\nsend_to = "collective:guard"\nurgnt = true\n',
            "[adapters.pigeon]\n",
        )
    )
    _, problems = read(text, tmp_path)
    assert {problem.code for problem in problems} == {
        "peer.no_address",
        "collective.unknown_member",
        "site.unknown_choice",
        "action.unknown_receiver",
        "action.no_text",
        "site.unknown_key",
        "adapter.unknown",
    }


def test_quiet_hours_without_a_zone_and_mail_without_a_server_are_warnings(tmp_path):
    text = '[peers.ana]\naddresses = ["mail:ana@example.org"]\nquiet = "22:00-07:00"\n'
    _, problems = read(text, tmp_path)
    assert [(problem.code, problem.severity) for problem in problems] == [
        ("peer.quiet_without_zone", "warning"),
        ("adapter.not_configured", "warning"),
    ]


def test_a_bad_address_is_not_repeated_since_it_may_hold_a_secret(tmp_path):
    text = '[peers.ana]\naddresses = ["webhook:ftp://user:hidden@x"]\n'
    _, (problem,) = read(text, tmp_path)
    assert "hidden" not in problem.message
    assert "hidden" not in problem.hint


def test_a_text_that_asks_for_what_the_policy_does_not_have_is_found(tmp_path):
    action = '[actions."raise alarm"]\nsend_to = "peer:ana"\ntext = "{A} in {Room}, {time}"\n'
    file = TomlFile.parse((PERSON + action).encode(), name="site.toml")
    declared, problems = communication_from_site(file, tmp_path)
    assert problems == []
    (problem,) = check_actions(file, declared, {"p": ["Raise  Alarm", "other"]}, {"p": ["A", "R"]})
    assert (problem.code, problem.line) == ("action.unknown_field", 5)
    assert "{Room}" in problem.message


def test_a_text_that_cannot_be_read_is_reported_once(tmp_path):
    text = PERSON + '[actions.alarm]\nsend_to = "peer:ana"\ntext = "{A"\n'
    file = TomlFile.parse(text.encode(), name="site.toml")
    declared, problems = communication_from_site(file, tmp_path)
    assert [problem.code for problem in problems] == ["action.bad_template"]
    assert check_actions(file, declared, {"p": ["alarm"]}, {"p": ["A"]}) == []


def test_the_site_shown_in_the_documentation_has_no_mistakes(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "concepts" / "communication.md"
    shown = page.read_text(encoding="utf-8").partition("```toml\n")[2].partition("```")[0]
    declared, problems = read(shown, tmp_path)
    assert problems == []
    assert declared.actions["raise alarm"].escalate


@pytest.mark.parametrize(
    ("text", "limit_ms", "code"),
    [
        ("", 600_000, ""),
        ('[site]\nact_within = "2 hours"\n', 7_200_000, ""),
        ('[site]\nact_within = "soon"\n', 600_000, "site.bad_duration"),
        ('[site]\nact_within = "0s"\n', 600_000, "site.bad_duration"),
    ],
)
def test_how_old_a_detection_may_be_is_a_duration_of_the_site(
    tmp_path: Path, text: str, limit_ms: int, code: str
) -> None:
    declared, problems = communication_from_site(
        TomlFile.parse(text.encode(), name="site.toml"), tmp_path
    )
    assert declared.act_within_ms == limit_ms
    assert [problem.code for problem in problems] == [code] * bool(code)
