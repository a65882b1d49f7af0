"""Whether what an action always says fits the schema of its type, before anybody is told. [CO-14]

Only texts without fields can be judged beforehand; the engine judges the others as they are said.
"""

from __future__ import annotations

from collections.abc import Mapping

from rapport.communication.actions import Action, message_saying
from rapport.communication.content_rules import ContentFault, ContentRules
from rapport.communication.templates import constant_text
from rapport.core.errors import InvalidInput, Problem
from rapport.kernel.toml import TomlFile


def constant_misfit(action: Action, rules: ContentRules) -> ContentFault | None:
    """Why an action is refused whenever it is taken; None when that is not known beforehand."""
    if action.effect is not None:
        return None
    try:
        text = constant_text(action.text)
    except InvalidInput:
        return None  # reported with the declaration
    return None if not text else rules.fault(message_saying(action, text))


def check_constant_texts(
    file: TomlFile, actions: Mapping[str, Action], rules: ContentRules
) -> list[Problem]:
    """The texts of `[actions]` that can never be sent."""
    found = [(phrase, constant_misfit(action, rules)) for phrase, action in actions.items()]
    return [
        file.problem(("actions", phrase, "text"), fault.code, fault.message, hint=fault.hint)
        for phrase, fault in found
        if fault is not None
    ]
