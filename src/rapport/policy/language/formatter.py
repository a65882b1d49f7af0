"""Formats a policy text canonically and keeps its comments and the order of its lines. [PO-3, SI-1]

Comment lines stay above their line, trailing comments behind it; several blank lines become one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rapport.policy.language.conditions import parse_condition
from rapport.policy.language.definitions import parse_definitions
from rapport.policy.language.diagnostics import Diagnostics
from rapport.policy.language.lexer import Token, comment_at, phrase_comment_at
from rapport.policy.language.parser import Options, Sections, parse_policy, split_sections
from rapport.policy.language.printer import print_definition, print_expression
from rapport.policy.language.situations import (
    SituationSections,
    format_line,
    is_situation,
    parse_situation_policy,
    says_same,
)
from rapport.policy.language.tree import Action, SourceSpan

_INDENT = "  "


class _OutputLine(NamedTuple):
    """A line to write, with the lines of the text it comes from."""

    text: str
    first: int
    last: int
    depth: int

    @property
    def indent(self) -> str:
        return _INDENT * self.depth


class _Comment(NamedTuple):
    """A comment or, with an empty text, a blank line."""

    text: str
    line: int
    trailing: bool
    indented: bool


def format_policy(text: str, *, name: str) -> str:
    """The canonical text: it has the same meaning, and formatting it again changes nothing.

    Raises PolicyError with every fault of a text that does not parse. Takes linear time.
    """
    faults = Diagnostics(name, text)
    sections: Sections | SituationSections
    if is_situation(text):
        parse_situation_policy(name, text)
        sections = SituationSections(text, faults)
        lines = list(_situation_lines(sections))
    else:
        parse_policy(text, name=name)
        sections = split_sections(text, faults)
        lines = list(_lines(sections))
    comments = list(_comments(text, sections.headers["actions"].line))
    return "\n".join(_written(lines, comments)) + "\n"


def _lines(sections: Sections) -> Iterator[_OutputLine]:
    yield _header("concepts", sections)
    for tokens in sections.concepts:
        for concept in parse_definitions([tokens], Diagnostics("", "")):
            yield _line(print_definition(concept), concept.place)
    yield _header("conditions", sections)
    aliases = frozenset(
        concept.alias for concept in parse_definitions(sections.concepts, Diagnostics("", ""))
    )
    for tokens in sections.conditions:
        first, last = tokens[0].place.line, tokens[-1].place.line
        yield _OutputLine(_condition(tokens, aliases), first, last, 1)
    if sections.guard_header is not None:
        yield _line("while", sections.guard_header, depth=0)
    for tokens in sections.guard:
        first, last = tokens[0].place.line, tokens[-1].place.line
        yield _OutputLine(format_line(tokens, aliases), first, last, 1)
    yield _header("actions", sections)
    yield from _action_lines(sections.actions)


def _situation_lines(sections: SituationSections) -> Iterator[_OutputLine]:
    if "concepts" in sections.headers:
        yield _header("concepts", sections)
    definitions = [tokens for tokens in sections.lines["concepts"] if not says_same(tokens)]
    for tokens in sections.lines["concepts"]:
        if says_same(tokens):
            first, last = tokens[0].text, tokens[2].text
            yield _line(f"{first} and {last} may be the same", tokens[0].place)
            continue
        for concept in parse_definitions([tokens], Diagnostics("", "")):
            yield _line(print_definition(concept), concept.place)
    found = parse_definitions(definitions, Diagnostics("", ""))
    aliases = frozenset(concept.alias for concept in found)
    for name in ("situation", "cleared by"):
        if name in sections.headers:
            yield _header(name, sections)
        for tokens in sections.lines[name]:
            first_line, last_line = tokens[0].place.line, tokens[-1].place.line
            yield _OutputLine(format_line(tokens, aliases), first_line, last_line, 1)
    for name in ("actions", "actions when cleared"):
        if name in sections.headers:
            yield _header(name, sections)
        yield from _action_lines(sections.actions[name].actions())


def _action_lines(actions: Iterable[Action]) -> Iterator[_OutputLine]:
    for action in actions:
        yield _line(action.phrase, action.place)
        for delivery in action.delivery:
            yield _line(delivery.text, delivery.place, depth=2)


def _header(name: str, sections: Sections | SituationSections) -> _OutputLine:
    return _line(name, sections.headers[name], depth=0)


def _line(text: str, place: SourceSpan, *, depth: int = 1) -> _OutputLine:
    return _OutputLine(text, place.line, place.line, depth)


def _condition(tokens: list[Token], aliases: frozenset[str]) -> str:
    """Formats a condition or an option."""
    option = Options().read(tokens, aliases)
    return option or print_expression(parse_condition(tokens, aliases))


def _comments(text: str, actions_line: int) -> Iterator[_Comment]:
    """Comments and blank lines; within actions a comment sign counts only after a space."""
    for number, line in enumerate(text.splitlines(), start=1):
        start = comment_at(line) if number <= actions_line else phrase_comment_at(line)
        trailing = bool(line[:start].strip())
        comment = line[start:].strip()
        if comment or not trailing:
            yield _Comment(comment, number, trailing, line[:1].isspace())


def _written(lines: list[_OutputLine], comments: list[_Comment]) -> list[str]:
    above, behind, below = _placed(lines, comments)
    written: list[str] = []
    for number, line in enumerate(lines):
        for comment in above[number]:
            _add(written, comment, _indent(comment, line))
        trailing = f"  {behind[number]}" if number in behind else ""
        written.append(f"{line.indent}{line.text}{trailing}")
    for comment in below:
        _add(written, comment, _INDENT if comment.indented else "")
    while not written[-1]:
        written.pop()
    return written


def _indent(comment: _Comment, line: _OutputLine) -> str:
    """The indent of the line below. Before a header the comment may belong to the section above, so
    its indent stays."""
    if line.depth == 0:
        return _INDENT if comment.indented and line.text != "concepts" else ""
    return line.indent


def _add(written: list[str], comment: _Comment, indent: str) -> None:
    if comment.text:
        written.append(indent + comment.text)
    elif written and written[-1]:
        written.append("")


def _placed(
    lines: list[_OutputLine], comments: list[_Comment]
) -> tuple[list[list[_Comment]], dict[int, str], list[_Comment]]:
    """Assigns comments to lines: above each line, behind it, and below all."""
    above: list[list[_Comment]] = [[] for _line in lines]
    behind: dict[int, str] = {}
    below: list[_Comment] = []
    number = 0
    for comment in comments:
        while number < len(lines) and lines[number].last < comment.line:
            number += 1
        if number == len(lines):
            below.append(comment)
            continue
        ending = _last_ending(lines, number, comment.line)
        if comment.trailing and ending is not None:
            behind[ending] = comment.text
        elif comment.text or lines[number].first > comment.line:
            above[number].append(comment)
    return above, behind, below


def _last_ending(lines: list[_OutputLine], number: int, at: int) -> int | None:
    """The last line from `number` on that ends in line `at` of the text."""
    found = None
    while number < len(lines) and lines[number].last == at:
        found = number
        number += 1
    return found
