"""Texts of actions: only named values, one printable line per value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.texts import fill_template, named_in_texts, template_fields
from rapport.core.detection import Detection
from rapport.core.errors import InvalidInput


def detection(**bindings):
    return Detection(policy="p", time=1_000, bindings=bindings, causes=((1_000, "e"),))


def test_aliases_policy_time_and_id_are_put_in():
    text = fill_template("{A} in {R}: {policy} at {time}, {id} {{ok}}", detection(A="5", R="r1"))
    assert text.startswith("5 in r1: p at 1970-01-01T00:00:01.000Z, ")
    assert text.endswith(" {ok}")


def test_a_missing_value_leaves_a_hole_instead_of_no_alarm():
    assert fill_template("{A} in {Room}", detection(A="5")) == "5 in ?"


def test_what_tables_know_of_an_alias_is_put_in():
    def facts(policy, version, alias, identity, column):
        return {("p", "A", "5", "badge"): "E200\n-05"}.get((policy, alias, identity, column))

    text = "badge {A.badge}, desk {A.desk}, {B.badge}"
    assert fill_template(text, detection(A="5"), facts) == "badge E200 -05, desk ?, ?"


@pytest.mark.parametrize(
    "text",
    [
        "{A.}",
        "{.x}",
        "{A.x.y}",
        "{A.x-y}",
        "{A.__class__()}",
        "{A[0]}",
        "{A!r}",
        "{A:>10}",
        "{0}",
        "{}",
        "{A",
        "}",
    ],
)
def test_anything_but_a_plain_name_is_refused(text):
    with pytest.raises(InvalidInput) as error:
        template_fields(text)
    assert error.value.code == "action.bad_template"


@given(st.text(max_size=300))
def test_a_value_stays_in_its_line_and_cannot_be_a_template_itself(value):
    text = fill_template("a {A} b", detection(A=value))
    assert text.isprintable()
    assert len(text) == len(value) + 4


def test_a_huge_value_is_cut():
    assert len(fill_template("{A}", detection(A="x" * 100_000))) == 4_000


def test_a_name_of_everyday_language_leads_to_that_of_texts():
    known = ("F", "began", "why")
    assert named_in_texts(known, "since").startswith("did you mean {began}? ")
    assert named_in_texts(known, "reason").startswith("did you mean {why}? ")
    assert named_in_texts(("F",), "since").startswith("a text can name {F}")
    assert "'actions when cleared'" in named_in_texts(known, "duration")
