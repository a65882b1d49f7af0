"""Texts name counts, aggregates and the instances of quantifiers, live: from the readings to the
words. [SI-5]"""

from __future__ import annotations

import asyncio

import pytest

from rapport.communication.texts import filled_text, template_fields
from rapport.policy.compiler.compile import compile_policy
from rapport.policy.named_values import needed_values, vocabulary
from rapport.site.actions import TemplateFacts
from tests.policy.engine.test_situations_live import SITE, Freezers

OTHERS = """concepts
  station F
situation
  temperature of F above -15 degC
  some station B with (temperature of B above 0 degC)
cleared by
  at least 2 station C with (temperature of C below -17 degC)
actions
  tell the guards
actions when cleared
  all is well
"""
OFTEN = """concepts
  station F
situation
  count of (temperature of F > -15 degC AND region of F != 'x: {y}!') in the last 1 min at least 2
  change of temperature of F in the last 10 s above 0.5 K
actions
  tell the guards
"""


def run(text: str, *templates: str, steps) -> list[str]:
    """The texts of each detection after some readings of stations; restarted between two."""
    compiled = compile_policy(text, name="freezer", ontology=SITE.ontology, window_ms=5_000)
    fields = [field for each in templates for field in template_fields(each)]
    needs = needed_values(fields, compiled, SITE.ontology)
    facts = TemplateFacts(SITE.tables, {"freezer": compiled}).find

    async def scenario():
        freezers = Freezers()
        freezers.plan = compiled.plan
        for station, value in steps:
            freezers.start()
            freezers.engine.use_texts(lambda _policy, _version: needs)
            await freezers.read(value, station=station)
        return [
            filled_text(each, one, facts)[0] for one in await freezers.found() for each in templates
        ]

    return asyncio.run(scenario())


def test_a_text_names_the_first_instance_that_a_quantifier_counts_and_its_values():
    text = "{F}, since {B} ({B.name}) is at {temperature of B}: {C}"
    steps = [("10", 4.0), ("2", 5.5), ("1", -14.0), ("2", -20.0), ("10", -20.0), ("1", -20.0)]
    found = run(OTHERS, text, steps=steps)
    assert found[0] == "2, since 10 (Ten) is at 4 °C: unknown"
    assert "1, since 2 (Two) is at 5.5 °C: unknown" in found
    assert found[-1] == "10, since unknown (?) is at unknown: 1"


def test_why_shows_counts_and_counted_instances():
    [first, *_] = run(OTHERS, "{why}", steps=[("2", 5.5), ("1", -14.0)])
    assert first == (
        "temperature of F above -15 °C AND some station B with (temperature of B above 0 °C)"
        " (temperature of F is -14 °C, B is 2)"
    )


@pytest.mark.parametrize(
    "field",
    [
        "count of (temperature of F > -15 degC AND region of F != 'x: {{y}}!') in the last 1 min",
        "count of ( temperature of F above -15 degC AND region of F != 'x') in the last 60 s",
        "count of (temperature of F above -15 degC AND region of F != 'x')",
    ],
)
def test_a_count_of_a_term_is_named_as_the_expression_may_write_it(field):
    text = OFTEN.replace("x: {y}!", "x")
    field = field.replace("x: {{y}}!", "x")
    steps = [("1", -14.0), ("1", -30.0), ("1", -13.0)]
    assert run(text, f"{{{field}}} times", steps=steps) == ["2 times"]


def test_a_term_with_signs_of_templates_is_a_field():
    field = "count of (region of F != 'x:y' AND time is on Sat) in the last 1 min"
    assert template_fields(f"{{{field}}}") == (field,)


def test_differences_of_temperatures_are_in_kelvin():
    text = "{change of temperature of F} up, {name of F}"
    steps = [("1", -14.0), ("1", -13.0)]
    [found] = run(OFTEN.replace("x: {y}!", "x"), text, steps=steps)
    assert found.startswith("1 K up, ")


def test_instances_of_no_and_at_most_have_no_name():
    def known(line):
        text = OTHERS.replace("some station B", line)
        compiled = compile_policy(text, name="freezer", ontology=SITE.ontology, window_ms=5_000)
        return vocabulary(compiled, SITE.ontology)

    assert {"B", "temperature of B", "C"} <= known("at least 2 station B").keys()
    for line in ("no station B", "at most 1 station B"):
        assert not {"B", "temperature of B"} & known(line).keys()
