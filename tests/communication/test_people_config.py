"""What a site says about how many, how often, by which way and when, and every mistake in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.action_config import ACTION_KEYS
from rapport.communication.config import communication_from_site
from rapport.communication.delivery_state import NextReceiver
from rapport.communication.people_config import PEER_KEYS, RULE_KEYS
from rapport.communication.privacy import (
    DateSpan,
    DaySpan,
    Hold,
    LocalTimes,
    PrivacyFacts,
    PrivacyRule,
    quiet_rule,
    verdict,
)
from rapport.kernel.toml import TomlFile

PEOPLE = """
[peers.ana]
addresses = ["inbox:"]
[peers.ben]
addresses = ["inbox:"]
[peers.lea]
addresses = ["inbox:"]
[collectives.volunteers]
members = ["ana", "ben"]
[collectives.next-town]
members = ["lea"]
"""

RULE = '[peers.ana]\naddresses = ["inbox:"]\nzone = "UTC"\n[[peers.ana.privacy]]\n'  # 4 lines
ACTION = PEOPLE + '[actions.x]\ntext = "x"\nsend_to = "collective:volunteers"\n'  # 14 lines
ONE = '[peers.ana]\naddresses = ["inbox:"]\n'
GROUP = ONE + '[collectives.c]\nmembers = ["ana"]\ndelivery = '
DUTY = ONE + '[collectives.c]\nmembers = ["ana"]\nroster = '
NEXT = ACTION + 'answer_within = "1s"\nescalate_to = '


def read(text, directory):
    return communication_from_site(TomlFile.parse(text.encode(), name="site.toml"), directory)


def read_well(text, directory):
    declared, problems = read(text, directory)
    assert problems == []
    return declared


def test_an_action_says_how_many_how_often_and_who_is_next(tmp_path):
    declared = read_well(
        PEOPLE
        + """
[actions.help]
send_to = "collective:volunteers"
text = "x"
least = 2
answer_within = "10 min"
escalate_to = ["peer:lea", { to = "collective:next-town", answer_within = "5 min" }]
repeat_every = "2 min"
repeat_most = 4
peer_delivery = "preferred"
""",
        tmp_path,
    )
    action = declared.actions["help"]
    assert (action.least, action.done_when, action.reach) == (2, "answered", None)
    assert action.escalate == (
        NextReceiver("peer:lea"),
        NextReceiver("collective:next-town", 300_000),
    )
    assert (action.repeat_every_ms, action.repeat_most) == (120_000, 4)
    assert action.peer_delivery == "preferred"


def test_what_an_action_leaves_out_is_left_to_the_people(tmp_path):
    declared = read_well(PEOPLE + '[actions.x]\nsend_to = "peer:ana"\ntext = "x"\n', tmp_path)
    action = declared.actions["x"]
    assert (action.least, action.repeat_every_ms, action.repeat_most) == (0, 0, 0)
    assert (action.escalate, action.peer_delivery, action.done_when) == ((), None, "sent")


@pytest.mark.parametrize("key", ["least = 2", 'repeat_every = "1 min"'])
def test_numbers_and_repetition_count_answers_unless_the_action_says_sent(key, tmp_path):
    text = PEOPLE + f'[actions.x]\nsend_to = "collective:volunteers"\ntext = "x"\n{key}\n'
    assert read_well(text, tmp_path).actions["x"].done_when == "answered"
    if key.startswith("least"):
        sent = read_well(text + 'done_when = "sent"\n', tmp_path).actions["x"]
        assert (sent.done_when, sent.least) == ("sent", 2)


def test_a_collective_says_how_many_it_takes(tmp_path):
    text = PEOPLE + '[collectives.pair]\nmembers = ["ana", "lea"]\ndelivery = "at-least 2"\n'
    pair = read_well(text, tmp_path).collectives["pair"]
    assert (pair.delivery, pair.least) == ("at-least", 2)


def test_all_a_person_can_say_about_being_reached(tmp_path):
    (tmp_path / "rules.py").write_text("def in_a_meeting(told):\n    return None\n")
    text = """
[peers.ana]
addresses = ["inbox:"]
zone = "Europe/Vienna"
quiet = ["22:00-07:00", "12:30-13:30"]
on_quiet = "refuse"
[[peers.ana.privacy]]
sender = "peer:boss"
then = "allow"
[[peers.ana.privacy]]
type = ["AD*", "NEWS"]
subtype = "weekly"
reason = "no adverts"
[[peers.ana.privacy]]
hours = "00:00-24:00"
days = ["sat-sun", "wed"]
dates = ["12-24..01-06", "2026-08-01"]
then = "hold"
[[peers.ana.privacy]]
at_most = 5
per = "30 min"
then = "hold"
[[peers.ana.privacy]]
type = "DIGEST"
then = "hold"
until = "08:00"
[[peers.ana.privacy]]
urgent = true
then = "hold"
for = "1 min"
[[peers.ana.privacy]]
ask = "rules:in_a_meeting"
"""
    zone = "Europe/Vienna"
    assert read_well(text, tmp_path).peers["ana"].privacy == (
        PrivacyRule(senders=("peer:boss",), then="allow", zone=zone),
        PrivacyRule(types=("AD*", "NEWS"), subtypes=("weekly",), reason="no adverts", zone=zone),
        PrivacyRule(
            then="hold",
            urgent=False,
            when=LocalTimes(
                hours=(DaySpan(0, 1440),),
                days=(5, 6, 2),
                dates=(DateSpan("12-24", "01-06"), DateSpan("2026-08-01", "2026-08-01")),
            ),
            zone=zone,
        ),
        PrivacyRule(then="hold", urgent=False, at_most=5, per_ms=1_800_000, zone=zone),
        PrivacyRule(then="hold", types=("DIGEST",), until=480, zone=zone),
        PrivacyRule(then="hold", urgent=True, hold_ms=60_000, zone=zone),
        PrivacyRule(ask="rules:in_a_meeting", zone=zone),
        quiet_rule([DaySpan(1320, 420), DaySpan(750, 810)], zone, "refuse"),
    )


@pytest.mark.parametrize(
    ("days", "numbers"),
    [
        ("mon", (0,)),
        ("Saturday", (5,)),
        ("fri-mon", (4, 5, 6, 0)),
        ("workdays", (0, 1, 2, 3, 4)),
        ("Weekend", (5, 6)),
    ],
)
def test_days_are_named_as_people_name_them(days, numbers, tmp_path):
    assert read_well(RULE + f'days = "{days}"\n', tmp_path).peers["ana"].privacy[
        0
    ].when == LocalTimes(days=numbers)


def test_urgent_breaks_through_times_and_numbers_unless_the_rule_says_else(tmp_path):
    for lines, urgent in (
        ('hours = "22:00-07:00"', False),
        ("at_most = 5", False),
        ('hours = "22:00-07:00"\neven_urgent = true', None),
        ('hours = "22:00-07:00"\nthen = "allow"', None),
        ('type = "AD"', None),
        ('type = "AD"\nurgent = false', False),
    ):
        (rule,) = read_well(f"{RULE}{lines}\n", tmp_path).peers["ana"].privacy
        assert rule.urgent is urgent, lines


# --- what is wrong ---


WRONG = [
    (RULE + 'days = "someday"\nthen = "hold"\n', "privacy.bad_days", 5, "mon-fri"),
    (NEXT + '[""]\n', "message.bad_identifier", 16, "peer:NAME"),
    (NEXT + '[{ to = "" }]\n', "site.wrong_type", 16, "collective:NAME"),
    (RULE + 'then = "hold"\nfor = "400 d"\n', "site.out_of_range", 6, "1 hour"),
    (GROUP + '"at-least"\n', "collective.bad_least", 5, "at-least 3"),
    (GROUP + '"at-least 0"\n', "collective.bad_least", 5, "from 1"),
    (GROUP + '"at-least two"\n', "collective.bad_least", 5, "number"),
    (GROUP + '"to-al-members"\n', "site.unknown_choice", 5, "to-all-members"),
    (GROUP + "3\n", "site.wrong_type", 5, ""),
    (DUTY + '[{ person = "anna" }]\n', "collective.not_a_member", 5, "ana"),
    (DUTY + '[{ hours = "08:00-20:00" }]\n', "site.missing_key", 5, "person"),
    (DUTY + '[{ person = "ana", hour = "8" }]\n', "site.unknown_key", 5, "hours"),
    (DUTY + '[{ person = "ana", hours = "8-20" }]\n', "peer.bad_quiet", 5, "22:00"),
    (DUTY + '[{ person = "ana", days = "Mo" }]\n', "privacy.bad_days", 5, "mon-fri"),
    (DUTY + '[{ person = "ana", dates = "soon" }]\n', "privacy.bad_dates", 5, "2026-08-01"),
    (
        DUTY + '[{ person = "ana" }, { person = "ana", instead_of = "an" }]\n',
        "collective.nobody_to_replace",
        5,
        "ana",
    ),
    (DUTY + '"ana"\n', "site.wrong_type", 5, "person"),
    (
        DUTY + '[{ person = "ana" }]\nzone = "Vienna"\n',
        "peer.bad_zone",
        6,
        "Europe/Vienna",
    ),
    (ACTION + "least = 0\n", "site.out_of_range", 15, ""),
    (ACTION + 'least = "3"\n', "site.wrong_type", 15, ""),
    (ACTION + 'repeat_every = "10 ms"\n', "action.repeat_too_fast", 15, "2 min"),
    (ACTION + 'repeat_every = "often"\n', "site.bad_duration", 15, "2 hours"),
    (ACTION + "repeat_most = 5\n", "action.nothing_repeated", 15, "repeat_every"),
    (ACTION + 'repeat_every = "1 min"\nrepeat_most = 0\n', "site.out_of_range", 16, ""),
    (
        ACTION + 'repeat_every = "1 min"\ndone_when = "sent"\n',
        "action.answer_not_awaited",
        15,
        "answered",
    ),
    (ACTION + 'peer_delivery = "prefered"\n', "site.unknown_choice", 15, "'preferred'"),
    (NEXT + '[{ to = "peer:lea", answr = "5s" }]\n', "site.unknown_key", 16, "'answer_within'"),
    (NEXT + '[{ answer_within = "5s" }]\n', "site.missing_key", 16, "to ="),
    (NEXT + '[{ to = "peer:leo" }]\n', "action.unknown_receiver", 16, "'lea'"),
    (NEXT + '[{ to = "peer:lea", answer_within = "0s" }]\n', "site.bad_duration", 16, ""),
    (NEXT + "[5]\n", "site.wrong_type", 16, "answer_within"),
    (
        ACTION + 'escalate_to = [{ to = "peer:lea", answer_within = "5s" }]\n',
        "action.no_deadline",
        15,
        "answer_within",
    ),
    ('[peers.ana]\naddresses = ["inbox:"]\nprivacy = "no"\n', "site.wrong_type", 3, "then"),
    (RULE + 'typ = "AD"\n', "site.unknown_key", 5, "'type'"),
    (RULE + 'then = "reject"\n', "site.unknown_choice", 5, "refuse"),
    (RULE + 'type = "AD"\nthen = "hold"\n', "privacy.endless_hold", 6, "until"),
    (
        RULE + 'hours = ["00:00-12:00", "12:00-24:00"]\nthen = "hold"\n',
        "privacy.endless_hold",
        5,
        "an hour",
    ),
    (
        '[peers.ana]\naddresses = ["inbox:"]\nzone = "UTC"\n'
        'quiet = ["00:00-12:00", "11:00-24:00"]\n',
        "privacy.endless_hold",
        4,
        "an hour",
    ),
    (RULE + 'hours = "22-7"\n', "peer.bad_quiet", 5, "22:00-07:00"),
    (RULE + "hours = []\n", "site.wrong_type", 5, "hours"),
    (RULE + 'days = "someday"\n', "privacy.bad_days", 5, "mon-fri"),
    (RULE + 'days = "mon-tue-wed"\n', "privacy.bad_days", 5, "mon-fri"),
    (RULE + 'dates = "24.12."\n', "privacy.bad_dates", 5, "12-24"),
    (RULE + 'dates = "2026-02-30"\n', "privacy.bad_dates", 5, "2026-08-01"),
    (RULE + 'dates = "2026-08-14..2026-08-01"\n', "privacy.bad_dates", 5, "2026-08-01..2026-08-14"),
    (RULE + 'dates = "2026-08-14..08-20"\n', "privacy.bad_dates", 5, "every year"),
    (RULE + "at_most = 0\n", "site.out_of_range", 5, ""),
    (RULE + 'type = "AD"\nper = "1 hour"\n', "privacy.nothing_counted", 6, "at_most"),
    (RULE + 'then = "hold"\nuntil = "8"\n', "privacy.bad_clock", 6, "08:00"),
    (RULE + 'type = "AD"\nuntil = "08:00"\n', "privacy.nothing_held", 6, "hold"),
    (RULE + 'then = "hold"\nuntil = "08:00"\nfor = "1 min"\n', "privacy.two_ends", 7, "leave one"),
    (RULE + 'sender = "boss"\n', "privacy.bad_sender", 5, "peer:NAME"),
    (RULE + "urgent = true\neven_urgent = true\n", "privacy.urgent_twice", 6, "leave one"),
    (RULE + 'ask = "rules:here"\nthen = "hold"\n', "privacy.two_deciders", 6, "leave"),
    (RULE + 'ask = "rules:hree"\n', "privacy.unknown_function", 5, "'here'"),
    (RULE + 'ask = "os:system"\n', "privacy.unknown_function", 5, "site's directory"),
    (RULE + 'ask = "../rules:here"\n', "privacy.bad_function", 5, "rules.py"),
    (RULE + 'ask = "broken:here"\n', "privacy.bad_function", 5, "Python"),
    (RULE + 'ask = "no-plug-in"\n', "privacy.unknown_function", 5, "module:function"),
    (RULE + 'then = "hold"\nfor = "400 d"\n', "site.out_of_range", 6, "1 hour"),
    (RULE + 'reason = "a\\nb"\n', "site.wrong_type", 5, "reason"),
]


@pytest.mark.parametrize(("text", "code", "line", "hint"), WRONG)
def test_each_mistake_is_reported_at_its_line_with_a_hint(text, code, line, hint, tmp_path):
    (tmp_path / "rules.py").write_text("def here(told):\n    return None\n")
    (tmp_path / "broken.py").write_text("def here(:\n")
    _, problems = read(text, tmp_path)
    errors = [problem for problem in problems if problem.severity == "error"]
    assert [(problem.code, problem.line) for problem in errors] == [(code, line)]
    assert hint in errors[0].hint
    assert errors[0].message


_VALUES = st.one_of(
    st.none().map(lambda _none: True),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["22:00-07:00", "00:00-24:00", "08:00", "hold", "refuse", "allow", "5 min"]),
    st.sampled_from(["mon-fri", "weekend", "12-24..01-06", "2026-01-01", "peer:*", "400 d", "*"]),
    st.sampled_from(["os:system", "rules:here", ":", "at-least 3", "collective:volunteers"]),
    st.dictionaries(st.sampled_from(["to", "answer_within"]), st.text(max_size=5), max_size=2),
)
_ANY = st.one_of(_VALUES, st.lists(_VALUES, max_size=3))


@given(
    rules=st.lists(st.dictionaries(st.sampled_from(RULE_KEYS), _ANY, max_size=5), max_size=3),
    person=st.dictionaries(st.sampled_from(PEER_KEYS), _ANY, max_size=3),
    action=st.dictionaries(st.sampled_from(ACTION_KEYS), _ANY, max_size=6),
    now=st.integers(0, 4_000_000_000_000),
)
def test_every_rule_gives_faults_or_a_verdict(rules, person, action, now):
    values = {
        "peers": {"ana": {"addresses": ["inbox:"], "privacy": rules} | person},
        "collectives": {"volunteers": {"members": ["ana"]}},
        "actions": {"x": action},
    }
    declared, problems = communication_from_site(TomlFile("x", "", values), Path("nowhere"))
    assert all(problem.code and problem.message for problem in problems)
    if any(problem.severity == "error" and problem.code[:4] != "acti" for problem in problems):
        return
    facts = PrivacyFacts(
        type="A", subtype="", sender="peer:x", urgent=False, now_ms=now, recent=lambda n: [now] * n
    )
    said = verdict(declared.peers["ana"].privacy, facts)
    assert not isinstance(said, Hold) or now < said.until < now + 800 * 86_400_000


DOUBTFUL = [
    (GROUP + '"at-least 2"\n', "collective.least_too_many", 5),
    (DUTY + '[{ person = "ana", hours = "08:00-20:00" }]\n', "collective.roster_gap", 5),
    (ACTION + "least = 3\n", "action.least_too_many", 15),
    (ACTION + 'answer_within = "1 min"\nrepeat_every = "2 min"\n', "action.repeat_too_late", 16),
    (RULE + '[[peers.ana.privacy]]\ntype = "AD"\n', "privacy.never_reached", 4),
    (ONE + '[[peers.ana.privacy]]\nhours = "22:00-07:00"\n', "peer.quiet_without_zone", 3),
]


@pytest.mark.parametrize(("text", "code", "line"), DOUBTFUL)
def test_what_cannot_be_meant_is_a_warning(text, code, line, tmp_path):
    _, (problem,) = read(text, tmp_path)
    assert (problem.code, problem.line, problem.severity) == (code, line, "warning")
    assert problem.hint


def test_a_wrong_rule_among_several_is_reported_at_its_own_line(tmp_path):
    text = RULE + 'type = "AD"\n[[peers.ana.privacy]]\ntype = "B"\ndays = "someday"\n'
    _, (problem,) = read(text, tmp_path)
    assert problem.line == 8


def test_a_roster_has_the_zone_of_the_group_or_of_the_site(tmp_path):
    text = DUTY + '[{ person = "ana" }]\n'
    assert read_well(text, tmp_path).collectives["c"].roster.zone == "UTC"
    site = '[site]\nzone = "Europe/Vienna"\n'
    assert read_well(site + text, tmp_path).collectives["c"].roster.zone == "Europe/Vienna"
    own = read_well(site + text + 'zone = "Asia/Tokyo"\n', tmp_path)
    assert own.collectives["c"].roster.zone == "Asia/Tokyo"


def test_the_gaps_of_a_roster_are_named(tmp_path):
    _, (problem,) = read(DUTY + '[{ person = "ana", days = "mon-fri" }]\n', tmp_path)
    assert problem.message == "nobody is on duty from Sat 00:00 to Mon 00:00"
