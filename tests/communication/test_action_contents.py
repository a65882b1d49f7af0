"""What actions of policies say fits the schema of its type, or is not sent; nothing else suffers.
[CO-14, PO-10]
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rapport.communication.actions import Action, EffectTemplate
from rapport.communication.config import check_constant_texts, constant_misfit
from rapport.communication.content_rules import ContentRules
from rapport.communication.texts import constant_text, fill_template
from rapport.core.detection import Detection
from rapport.core.message import Identifier
from rapport.core.release import LATE
from rapport.kernel.toml import TomlFile

LEVELS = {
    "type": "object",
    "required": ["room", "level"],
    "properties": {"room": {"type": "string"}, "level": {"type": "integer", "maximum": 5}},
}
RULES = ContentRules({("NOTIFICATION", "tell machine"): LEVELS})


def telling(text: str, phrase: str = "tell machine") -> Action:
    return Action(phrase=phrase, send_to=Identifier("peer", "lea"), text=text)


def prepare(room: Any, text: str) -> None:
    room.contents = RULES
    room.phrases = {"secure-building": ("tell machine", "raise alarm")}
    room.actions["tell machine"] = telling(text)


async def told(room: Any, peer: str) -> list[str]:
    ledger = await room.ledger()
    rows = ledger.rows(peer=peer, state="handed")
    return [ledger.message(row.message).text for row in rows]


def test_what_fits_is_sent(room):
    prepare(room, '{{"room": "{R}", "level": 3}}')

    async def scenario() -> None:
        await room.start()
        await room.detect()
        await room.settle()
        assert await told(room, "lea") == ['{"room": "r1", "level": 3}']

    asyncio.run(scenario())


def test_what_does_not_fit_is_refused_with_its_place_and_the_other_action_goes_on(room):
    prepare(room, '{{"room": "{R}", "level": 7}}')

    async def scenario() -> None:
        await room.start()
        await room.detect()
        await room.settle()
        await room.restart()
        await room.detect(event="e2", room="r2")
        await room.settle()
        assert await told(room, "lea") == []
        assert len(await told(room, "ana")) == 2, "the alarm is not held up"
        ledger = await room.ledger()
        refused = [row for row in ledger.messages() if row.receiver == "peer:lea"]
        assert [(row.state, row.result) for row in refused] == [("closed", "failed")] * 2
        said = refused[0].reason
        assert said.startswith("message.bad_content: policy 'secure-building', action 'tell mac")
        assert "at /level" in said
        control = await room.channels.channel("control").read_after(0)
        subjects = [
            stored.event.subject
            for stored in control
            if stored.event.type == "rapport.control.comerror"
        ]
        assert subjects == ["component:policy"] * 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("text", "begins"),
    [('{{"room": "{R}", "level": 3}}', '{"room"'), ("Guest in {R}", None)],
    ids=["machine", "words"],
)
def test_a_late_one_that_is_for_machines_stays_as_machines_read_it(room, text, begins):
    prepare(room, text)

    async def scenario() -> None:
        await room.start()
        detection = Detection(
            policy="secure-building",
            time=room.clock.now_ms(),
            bindings={"A": "5", "R": "r1"},
            causes=((1, "e1"),),
        )
        event = detection.to_event(source="policy")
        late = msgspec.structs.replace(event, headers=event.headers | {LATE: "1"})
        await room.channels.channel("detections").append([late])
        await room.settle()
        found = await told(room, "lea")
        assert len(found) == (begins is not None)
        assert all(text.startswith(begins or "") for text in found)
        assert (await told(room, "ana"))[0].startswith("LATE")

    asyncio.run(scenario())


# --- before anything is said ---


def test_a_constant_text_is_judged_beforehand_and_one_with_fields_is_not() -> None:
    file = TomlFile.parse(b'[actions."tell machine"]\ntext = "oh"\n', name="site.toml")
    (problem,) = check_constant_texts(file, {"tell machine": telling("oh")}, RULES)
    assert (problem.code, problem.line) == ("message.bad_content", 2)
    assert "it is not JSON" in problem.message
    assert "rapport info show NOTIFICATION tell machine" in problem.hint
    good = telling('{{"room": "r", "level": 1}}')
    for fine in (good, telling("{R}"), telling("oh {"), telling("oh", phrase="else"), telling("")):
        assert constant_misfit(fine, RULES) is None
    effect = EffectTemplate(kind="append", target="raw.notes", type="note")
    doing = Action(phrase="x", send_to=Identifier("component", "x"), text="oh", effect=effect)
    assert constant_misfit(doing, RULES) is None


@given(st.text(max_size=200))
def test_a_constant_text_is_what_every_detection_makes_of_it(text: str) -> None:
    template = text.replace("{", "{{").replace("}", "}}")
    detection = Detection(policy="p", time=0, bindings={}, causes=())
    assert constant_text(template) == fill_template(template, detection) == text
