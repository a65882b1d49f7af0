"""Parses the section `while` of a policy with `conditions`: an expression that must be true at the
time of a detection. [SI-9]"""

from __future__ import annotations

from typing import NamedTuple

from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.lexer import SyntaxFault, Token, TokenCursor, phrase_of
from rapport.policy.language.situation_conditions import ConditionReader, LogicalLines
from rapport.policy.language.situation_tree import AndOf, Condition
from rapport.policy.language.tree import SourceSpan

HEADER = "while"


class GuardSection(NamedTuple):
    """A text without its section `while`, whose lines are blank there; and that section's lines."""

    rest: str
    header: SourceSpan | None
    lines: list[list[Token]]


def split_guard(text: str, faults: Diagnostics) -> GuardSection:
    """Takes the section `while` out of a policy with `conditions`; reports a wrong order."""
    kept: list[str] = []
    logical = LogicalLines(faults)
    header: SourceSpan | None = None
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        phrase = phrase_of(line).lower()
        first = phrase.split()[0] if phrase else ""
        if section != "actions" and phrase.removesuffix(":").strip() == HEADER:
            place = SourceSpan(number, len(line) - len(line.lstrip()) + 1, len(phrase))
            _check_header(phrase, section, header, place, faults)
            header, section = header or place, HEADER
            kept.append("")
        elif section != "actions" and first in ("concepts", "conditions", "actions"):
            section = first
            kept.append(line)
        elif section == HEADER:
            logical.add(line, number)
            kept.append("")
        else:
            kept.append(line)
    logical.close()
    if header is not None and not logical.lines and not faults.has_errors():
        message = f"the section {HEADER!r} is empty"
        hint = "say what must be true at the time of a detection, or leave the section out"
        faults.add("policy.empty_section", message, header, hint=hint)
    if header is None:
        return GuardSection(text, None, [])
    return GuardSection("\n".join(kept), header, logical.lines)


def _check_header(
    phrase: str,
    section: str,
    header: SourceSpan | None,
    place: SourceSpan,
    faults: Diagnostics,
) -> None:
    if phrase != HEADER:
        message = f"there is no section named {phrase!r}"
        faults.add("policy.unknown_section", message, place, hint=f"did you mean {HEADER!r}?")
    elif header is not None:
        message = f"the section {HEADER!r} was already opened in line {header.line}"
        hint = "put all its lines into one section"
        faults.add("policy.repeated_section", message, place, hint=hint)
    elif section != "conditions":
        message = f"the section {HEADER!r} comes too early"
        hint = "the order is concepts, conditions, while, actions"
        faults.add("policy.section_order", message, place, hint=hint)


def parse_guard(
    lines: list[list[Token]], aliases: frozenset[str], faults: Diagnostics
) -> Condition | None:
    """The lines joined by AND; None if there is none without fault."""
    parts: list[Condition] = []
    for line in lines:
        try:
            parts.append(ConditionReader(TokenCursor(line), aliases).line())
        except SyntaxFault as fault:
            faults.add(fault.code, fault.message, fault.place, hint=fault.hint)
    if len(parts) > 1:
        return AndOf(tuple(parts))
    return parts[0] if parts else None
