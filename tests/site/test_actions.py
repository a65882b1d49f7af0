"""What policies say about their own actions, put together with what the site says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rapport.communication.actions import Action
from rapport.communication.config import CommunicationConfig, communication_from_site
from rapport.communication.content_rules import ContentRules
from rapport.communication.delivery_state import NextReceiver
from rapport.communication.texts import same_phrase
from rapport.core.message import Identifier
from rapport.kernel.toml import TomlFile
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.parser import parse_policy
from rapport.site.actions import OwnActions, check_deliveries
from rapport.site.site import check_site

CHECKS = Path(__file__).parents[1] / "data" / "checks"
PEOPLE = """
[peers.ana]
addresses = ["inbox:"]
[peers.both]
addresses = ["inbox:"]
[collectives.guards]
members = ["ana"]
[collectives.both]
members = ["ana"]
[actions."raise alarm"]
send_to = "collective:guards"
text = "{A} is alone"
urgent = true
answer_within = "60s"
ttl = "1h"
[actions."note it"]
append = "raw.notes"
type = "note"
"""
HEAD = "concepts\n  person A\n  room R\nconditions\n  A is inside R\nactions\n"


@pytest.fixture
def people(tmp_path: Path) -> CommunicationConfig:
    declared, problems = communication_from_site(
        TomlFile.parse(PEOPLE.encode(), name="site.toml"), tmp_path
    )
    assert problems == []
    return declared


def policy(*lines: str, phrase: str = "raise alarm") -> str:
    return HEAD + f"  {phrase}\n" + "".join(f"    {line}\n" for line in lines)


def test_a_policy_overrides_what_it_speaks_of_and_nothing_else(people: CommunicationConfig) -> None:
    own = OwnActions(people, lambda _name, _version: policy("to ana", "not urgent", "everybody"))
    action = own.of("watch", "1").begin.get(same_phrase("Raise  Alarm"))
    assert action is not None
    assert (action.send_to, action.urgent) == (Identifier("peer", "ana"), False)
    assert action.reach == "to-all-members"
    assert (action.text, action.answer_within_ms, action.ttl_ms) == (
        "{A} is alone",
        60_000,
        3_600_000,
    )
    assert action.done_when == "answered"
    assert own.of("watch", "1").begin.get(same_phrase("another phrase")) is None


def test_a_policy_that_says_all_needs_no_entry_of_the_site(people: CommunicationConfig) -> None:
    text = policy("to guards", "answer within 5 s", "then ana", 'say "{A}"', phrase="call them")
    action = (
        OwnActions(people, lambda _name, _version: text)
        .of("watch", "1")
        .begin.get(same_phrase("call them"))
    )
    assert action is not None
    assert (action.send_to, action.text) == (Identifier("collective", "guards"), "{A}")
    assert action.escalate == (NextReceiver("peer:ana"),)
    assert (action.done_when, action.answer_within_ms) == ("answered", 5_000)
    faults = Diagnostics("watch", text)
    check_deliveries(parse_policy(text, name="watch"), people, ["A", "R"], faults)
    assert faults.problems() == ()


def own_action(people: CommunicationConfig, *lines: str) -> Action:
    action = (
        OwnActions(people, lambda _name, _version: policy(*lines))
        .of("watch", "1")
        .begin.get(same_phrase("raise alarm"))
    )
    assert action is not None
    return action


def test_how_many_how_often_and_by_which_way(people: CommunicationConfig) -> None:
    action = own_action(
        people,
        "at least 2 answer",
        "repeat every 2 min at most 5 times",
        "then ana within 5 min",
        "on all channels",
    )
    assert (action.least, action.reach, action.done_when) == (2, None, "answered")
    assert (action.repeat_every_ms, action.repeat_most) == (120_000, 5)
    assert action.escalate == (NextReceiver("peer:ana", 300_000),)
    assert action.peer_delivery == "to-all-channels"


def test_a_line_about_how_many_leaves_nothing_of_what_the_site_says_about_it(
    tmp_path: Path,
) -> None:
    site = PEOPLE.replace('ttl = "1h"', 'least = 1\nrepeat_every = "2s"\nrepeat_most = 3')
    people, problems = communication_from_site(
        TomlFile.parse(site.encode(), name="site.toml"), tmp_path
    )
    assert problems == []
    silent = own_action(people, "urgent")
    assert (silent.least, silent.reach, silent.repeat_most) == (1, None, 3)
    everybody = own_action(people, "everybody answers", "repeat every 9 s")
    assert (everybody.least, everybody.reach) == (0, "to-all-members")
    assert (everybody.repeat_every_ms, everybody.repeat_most) == (9_000, 0)


def test_each_version_has_its_own_and_is_read_once(people: CommunicationConfig) -> None:
    asked: list[str] = []

    def text_of(_name: str, version: str) -> str:
        asked.append(version)
        return {"1": policy("to ana"), "2": policy()}.get(version, "")

    own = OwnActions(people, text_of)
    for _time in range(2):
        assert own.of("watch", "1").begin.get(same_phrase("raise alarm")) is not None
        assert own.of("watch", "2").begin.get(same_phrase("raise alarm")) is None
        assert own.of("watch", "gone").begin.get(same_phrase("raise alarm")) is None
    assert asked == ["1", "2", "gone"]


def test_a_name_that_is_no_more_is_a_peer_whom_the_ledger_misses(
    people: CommunicationConfig,
) -> None:
    action = (
        OwnActions(people, lambda _name, _version: policy("to nobody"))
        .of("watch", "1")
        .begin.get(same_phrase("raise alarm"))
    )
    assert action is not None
    assert action.send_to == Identifier("peer", "nobody")


WRONG = [
    (policy("to gards"), "policy.unknown_receiver", 8, "'guards'"),
    (policy("to peer guards"), "policy.unknown_receiver", 8, "ana"),
    (policy("then anna"), "policy.unknown_receiver", 8, "'ana'"),
    (policy("to both"), "policy.ambiguous_receiver", 8, "peer both"),
    (policy('say "{B}"'), "action.unknown_field", 8, ""),
    (policy('say "{A!r}"'), "action.bad_template", 8, "{A}, {R}, {policy}, {time}, {id}"),
    (policy("to ana", phrase="act"), "policy.incomplete_delivery", 7, "say"),
    (policy('say "x"', phrase="act"), "policy.incomplete_delivery", 7, "to NAME"),
    (policy("urgent", phrase="note it"), "policy.delivery_of_no_message", 8, "phrase of its own"),
    (policy("to ana", phrase="delete policy x"), "policy.delivery_of_no_message", 8, ""),
    (
        policy("to ana", "then guards", 'say "x"', phrase="act"),
        "action.no_deadline",
        8,
        "answer within",
    ),
]


@pytest.mark.parametrize(("text", "code", "line", "hint"), WRONG)
def test_what_cannot_be_delivered_is_told_at_its_place(
    people: CommunicationConfig, text: str, code: str, line: int, hint: str
) -> None:
    faults = Diagnostics("watch", text)
    check_deliveries(parse_policy(text, name="watch"), people, ["A", "R"], faults)
    (problem,) = faults.problems()
    assert (problem.code, problem.line) == (code, line)
    assert hint in problem.hint


@pytest.mark.parametrize(
    ("line", "code"),
    [("any 2 answer", "action.least_too_many"), ("repeat every 5 min", "action.repeat_too_late")],
)
def test_what_cannot_come_true_is_a_warning_at_its_line(
    people: CommunicationConfig, line: str, code: str
) -> None:
    text = policy("urgent", line)
    faults = Diagnostics("watch", text)
    check_deliveries(parse_policy(text, name="watch"), people, ["A", "R"], faults)
    (problem,) = faults.problems()
    assert (problem.code, problem.line, problem.severity) == (code, 9, "warning")
    assert problem.hint


def test_checking_a_site_looks_at_the_lines_below_actions(tmp_path: Path) -> None:
    site = Path(shutil.copytree(CHECKS / "small-policies", tmp_path / "site"))
    for name, line in (("or", "to nobody-here"), ("within", "tto guards")):
        file = site / f"{name}.dpl"
        file.write_text(f"{file.read_text().rstrip()}\n        {line}\n")
    found = {(p.file, p.code) for p in check_site(site) if p.severity == "error"}
    assert found == {
        ("or.dpl", "policy.unknown_receiver"),
        ("within.dpl", "policy.unknown_delivery"),
    }


def test_a_text_that_never_fits_its_schema_is_found_before_it_is_said(people) -> None:
    schema = {"type": "object", "required": ["room"]}
    rules = ContentRules({("NOTIFICATION", "raise alarm"): schema})
    for said, codes in (
        ('say "somebody is alone"', ["message.bad_content"]),
        ('say "{A} is alone"', []),
        ("urgent", []),
    ):
        text = policy("to ana", said)
        faults = Diagnostics("watch", text)
        check_deliveries(parse_policy(text, name="watch"), people, ["A", "R"], faults, rules)
        assert [problem.code for problem in faults.problems()] == codes
        assert [problem.line for problem in faults.problems()] == [9] * len(codes)


def test_checking_a_site_tells_of_texts_that_never_fit(tmp_path: Path) -> None:
    site = Path(shutil.copytree(CHECKS / "small-policies", tmp_path / "site"))
    with (site / "site.toml").open("a") as file:
        file.write(
            '[peers.desk]\naddresses = ["inbox:"]\n'
            '[actions."tell desk"]\nsend_to = "peer:desk"\ntext = "closed"\n'
            '[messages.NOTIFICATION."tell desk"]\ntext = "how many"\n'
            'schema = { type = "integer" }\n'
        )
    found = [one for one in check_site(site) if one.code == "message.bad_content"]
    assert [one.file for one in found] == ["site.toml"]
