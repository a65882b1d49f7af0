"""What an action does that speaks to machines: an event appended, a web address called, context
set, which is an event for the node's context broker. [PO-10]

The site says it as templates; with a detection they become one effect, whose id follows from the
detection, so that a second try is the same event and the same call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from rapport.communication.peers import shown_address
from rapport.communication.templates import Facts, fill_template
from rapport.core.detection import Detection
from rapport.core.event import MAX_NAME
from rapport.core.ids import content_id

EffectKind = Literal["append", "webhook"]
"""Both are also names of the adapters that carry them out."""

MOST_HOPS = 5
"""Actions that may follow from each other before one is refused, unless the action says else."""


class EffectTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """What the site says; texts in `subject` and `data` name fields of the detection."""

    kind: EffectKind
    target: str
    """A channel or a web address."""
    type: str
    subject: str = ""
    data: Any = None
    """None: what the detection itself says."""
    most_hops: int = MOST_HOPS

    @property
    def address(self) -> str:
        """Adapter and target, as deliveries name them."""
        return f"{self.kind}:{self.target}"

    def texts(self) -> Iterator[tuple[str, str]]:
        """Every text with fields to fill, with the key of the site file it stands at."""
        yield "subject", self.subject
        yield from (("data", text) for text in _texts(self.data))


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """An effect of one detection, ready to be carried out."""

    kind: EffectKind
    id: str
    target: str
    type: str
    subject: str
    time: int
    """When the action was begun, the same for every try. Not the time of the situation: other
    policies have decided that time already, so an event of it would come too late for them."""
    data: str
    """JSON."""
    hops: int = 0
    """How many actions led here, this one included."""
    most_hops: int = MOST_HOPS

    def shown(self) -> str:
        """What is done in one line; web addresses without what may be secret."""
        if self.kind == "webhook":
            return f"call {shown_address(f'webhook:{self.target}').partition(':')[2]}"
        about = f" about {self.subject}" if self.subject else ""
        return f"append {self.type}{about} to {self.target}"


def effect_of(
    template: EffectTemplate,
    phrase: str,
    detection: Detection,
    facts: Facts,
    *,
    now_ms: int,
    hops: int = 0,
) -> Effect:
    """The effect for one detection; `hops` is how many actions led to it."""
    detection_id = detection.id()
    said = template.data
    data = _as_found(detection) if said is None else _filled(said, detection, facts)
    return Effect(
        kind=template.kind,
        id=content_id("action", detection_id, phrase, template.address),
        target=template.target,
        type=template.type,
        subject=fill_template(template.subject, detection, facts)[:MAX_NAME],
        time=now_ms,
        data=msgspec.json.encode(data).decode(),
        hops=hops + 1,
        most_hops=template.most_hops,
    )


def _as_found(detection: Detection) -> dict[str, Any]:
    return {
        "policy": detection.policy,
        "time": detection.time,
        "detection": detection.id(),
        "bindings": detection.bindings,
    }


def _filled(value: Any, detection: Detection, facts: Facts) -> Any:
    """Texts with their fields filled in; all else as it stands."""
    match value:
        case str():
            return fill_template(value, detection, facts)
        case dict():
            return {key: _filled(item, detection, facts) for key, item in value.items()}
        case list():
            return [_filled(item, detection, facts) for item in value]
        case _:
            return value


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for item in value.values():
                yield from _texts(item)
        case list():
            for item in value:
                yield from _texts(item)
