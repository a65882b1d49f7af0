"""Topics of MQTT: names and filters. Pure. [CH-12]"""

from __future__ import annotations

import re

from rapport.core.errors import InvalidInput

LONGEST_TOPIC = 65_535
LONGEST_ADDRESS = 1_000
"""Bytes of a topic that is somebody's address: people write less than brokers take."""
_NAMED_LEVEL = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]{0,99})\}", re.ASCII)


def check_filter(text: str) -> None:
    """Raises InvalidInput unless it is a topic filter: `+` stands for one level, `#` for the rest.

    >>> check_filter("hall/+/temperature")
    """
    levels = text.split("/")
    bad = (
        not text
        or "\0" in text
        or len(text.encode("utf-8", "surrogatepass")) > LONGEST_TOPIC
        or "#" in levels[:-1]
        or any(len(level) > 1 and ("#" in level or "+" in level) for level in levels)
    )
    if bad:
        raise InvalidInput(
            f"{text[:80]!r} is not a topic filter",
            code="mqtt.bad_topic",
            hint="such as sensors/+/temperature or sensors/#",
        )


def check_subscription(text: str) -> None:
    """Raises InvalidInput unless it is a topic filter in which a level may be named in braces.

    >>> check_subscription("zigbee2mqtt/{device}/temperature")
    """
    names = [level for level in text.split("/") if _NAMED_LEVEL.fullmatch(level)]
    if len(set(names)) < len(names) or set("{}") & set(filter_of(text)):
        raise InvalidInput(
            f"{text[:80]!r} is not a topic filter",
            code="mqtt.bad_topic",
            hint="a name in braces stands for one whole level, each once: sensors/{device}/state",
        )
    check_filter(filter_of(text))


def filter_of(subscription: str) -> str:
    """The filter that a broker is given: named levels are wildcards there.

    >>> filter_of("tele/{device}/SENSOR")
    'tele/+/SENSOR'
    """
    levels = subscription.split("/")
    return "/".join("+" if _NAMED_LEVEL.fullmatch(level) else level for level in levels)


def named_levels(subscription: str, topic: str) -> dict[str, str]:
    """What the named levels of a subscription are in a topic that it covers.

    >>> named_levels("tele/{device}/SENSOR", "tele/kitchen/SENSOR")
    {'device': 'kitchen'}
    """
    found = {}
    for level, said in zip(subscription.split("/"), topic.split("/"), strict=False):
        if name := _NAMED_LEVEL.fullmatch(level):
            found[name[1]] = said
    return found


def is_topic(text: str) -> bool:
    """Whether it is one topic to publish to: no wildcards, no controls, no empty level, and none of
    the broker's own.

    >>> is_topic("panels/ana/show"), is_topic("panels/#"), is_topic("$SYS/x"), is_topic("a//b")
    (True, False, False, False)
    """
    return (
        0 < len(text.encode("utf-8", "surrogatepass")) <= LONGEST_ADDRESS
        and text.isprintable()
        and not set(text) & set("+#")
        and not text.startswith("$")
        and all(text.split("/"))
    )


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a filter covers a topic.

    >>> matches("a/#", "a"), matches("a/+", "a/b/c"), matches("#", "$SYS/load")
    (True, False, False)
    """
    wanted, given = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("#", "+"):
        return False
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(given) or level not in ("+", given[index]):
            return False
    return len(given) == len(wanted)


def clean_level(text: str) -> str:
    """Text as a part of a topic: wildcards and controls become `_`, slashes part levels as written.

    >>> clean_level("room/7+#")
    'room/7__'
    """
    kept = "".join(sign if sign.isprintable() and sign not in "+#" else "_" for sign in text)
    return kept.strip("/") or "_"
