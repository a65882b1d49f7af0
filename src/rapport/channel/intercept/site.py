"""Interceptors that a site declares for its channels: `interceptors = ["count", "drop: ..."]`.
[CH-10]

What stands behind the colon is the kind's main setting: a condition, a channel, an interpretation.
"""

from __future__ import annotations

from rapport.channel.declared import ChannelRules, ChannelsDeclared
from rapport.channel.intercept.interceptor import Declared
from rapport.channel.intercept.kinds import KINDS, Workshop, make_interceptor
from rapport.core.errors import DuplicateName, Problem, RapportError, Unsupported
from rapport.core.ids import content_id
from rapport.kernel.toml import TomlFile

_MAIN_SETTING = {
    "filter": "where",
    "drop": "where",
    "forward": "to",
    "mediate": "interpretation",
}
_NAME_DIGITS = 12


def site_interceptors(declared: ChannelsDeclared) -> list[Declared]:
    """All of a site, in their order; raises UnknownName for an unknown kind, Unsupported
    for one that needs more than one setting.

    Names depend on channels and text only: a following one goes on at its place after a restart.
    """
    found: list[Declared] = []
    for rule in (declared.common, *declared.rules):
        for text in rule.interceptors or ():
            found.append(_declared(rule.pattern, text, float(len(found)) - 1_000.0))
    return found


def check_interceptors(
    declared: ChannelsDeclared, file: TomlFile, workshop: Workshop
) -> list[Problem]:
    """What would keep the site's interceptors from being made at the start, each at its key.

    Each is made once, in `workshop`, and given nothing to do.
    """
    problems: list[Problem] = []
    for rule in (declared.common, *declared.rules):
        path = ("channels",) if rule is declared.common else ("channels", rule.pattern)
        for number, text in enumerate(rule.interceptors or ()):
            try:
                _check(rule, number, text, workshop)
            except RapportError as error:
                (found, *_more) = error.problems_found()
                problems.append(
                    file.problem(
                        (*path, "interceptors"),
                        error.code,
                        f"the interceptor {text[:100]!r}: {found.message}",
                        hint=found.hint or error.hint or "see docs/concepts/channel-care.md",
                    )
                )
    return problems


def _check(rule: ChannelRules, number: int, text: str, workshop: Workshop) -> None:
    one = _declared(rule.pattern, text, 0.0)
    make_interceptor(one.kind, one.settings, workshop)
    if text in (rule.interceptors or ())[:number]:
        raise DuplicateName(
            "it stands there twice", code="interceptor.duplicate", hint="once is enough"
        )


def _declared(pattern: str, text: str, order: float) -> Declared:
    kind, _colon, setting = (part.strip() for part in text.partition(":"))
    KINDS.get("interceptors", kind)  # a misspelt one is not one with too many settings
    if setting and kind not in _MAIN_SETTING:
        raise Unsupported(
            f"a setting of {kind!r} in a site file",
            hint="add it with: rapport channel intercept add",
        )
    return Declared(
        name=f"site.{content_id(pattern, text)[:_NAME_DIGITS]}",
        channels=pattern,
        kind=kind,
        settings={_MAIN_SETTING[kind]: setting} if setting else {},
        order=order,
    )
