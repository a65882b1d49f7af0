"""Interceptors that a site declares for its channels: `interceptors = ["count", "drop: ..."]`.
[CH-10]

What stands behind the colon is the kind's main setting: a condition, a channel, an interpretation.
"""

from __future__ import annotations

from rapport.channel.declared import ChannelsDeclared
from rapport.channel.intercept.interceptor import Declared
from rapport.core.errors import Unsupported
from rapport.core.ids import content_id

_MAIN_SETTING = {
    "filter": "where",
    "drop": "where",
    "forward": "to",
    "mediate": "interpretation",
}
_NAME_DIGITS = 12


def site_interceptors(declared: ChannelsDeclared) -> list[Declared]:
    """All of a site, in their order; raises Unsupported for one that needs more than one setting.

    Names depend on channels and text only: a following one goes on at its place after a restart.
    """
    found: list[Declared] = []
    for rule in (declared.common, *declared.rules):
        for text in rule.interceptors or ():
            found.append(_declared(rule.pattern, text, float(len(found)) - 1_000.0))
    return found


def _declared(pattern: str, text: str, order: float) -> Declared:
    kind, _colon, setting = (part.strip() for part in text.partition(":"))
    if setting and kind not in _MAIN_SETTING:
        raise Unsupported(
            f"the interceptor {text!r} in a site file",
            hint="add it with: rapport channel intercept add",
        )
    return Declared(
        name=f"site.{content_id(pattern, text)[:_NAME_DIGITS]}",
        channels=pattern,
        kind=kind,
        settings={_MAIN_SETTING[kind]: setting} if setting else {},
        order=order,
    )
