"""Parses a policy with a `situation`: its sections and their lines. [SI-1]

Lines of a section are joined by AND. Reports all faults at once: a faulty line is reported and
skipped.
"""

from __future__ import annotations

from rapport.core.errors import PolicyError
from rapport.core.times import format_duration
from rapport.policy.language.definitions import parse_definitions
from rapport.policy.language.diagnostics import Diagnostics, did_you_mean, nearest_word
from rapport.policy.language.lexer import (
    SyntaxFault,
    Token,
    TokenCursor,
    phrase_of,
    tokenize_situation,
)
from rapport.policy.language.parser import ActionLines, refuse_large
from rapport.policy.language.quantities import THROTTLE, read_duration
from rapport.policy.language.situation_conditions import LogicalLines, read_lines
from rapport.policy.language.situation_printer import print_situation_condition
from rapport.policy.language.situation_tree import Condition, SituationTree
from rapport.policy.language.tree import ConceptDef, SourceSpan

SECTIONS = ("concepts", "situation", "cleared by", "actions", "actions when cleared")
_NEEDED = {
    "situation": "say what must hold, such as: temperature of S above 30 degC for 10 min",
    "actions": "say what to do, such as: raise alarm",
}
_FILLED = _NEEDED | {
    "cleared by": "say what ends the situation, or leave the section out",
    "actions when cleared": "say what to do at the end, or leave the section out",
}
"""What stands in a section, by its name."""
_ACTION_SECTIONS = ("actions", "actions when cleared")
_CONDITIONS = ("situation", "conditions")
_SAME = ("may", "be", "the", "same")


def is_situation(text: str) -> bool:
    """True if a text has a section that only policies with a situation have; one that is misspelt
    or not alone in its line counts where there are no `conditions`."""
    phrases = [phrase_of(line).lower().removesuffix(":").strip() for line in text.splitlines()]
    if "actions when cleared" in phrases:
        return True
    if "actions" in phrases:
        phrases = phrases[: phrases.index("actions")]
    if "situation" in phrases or "cleared by" in phrases:
        return True
    firsts = (phrase.split() for phrase in phrases if phrase[:1] == "s")
    alike = any(
        words[0] == "situation" or (len(words) == 1 and nearest_word(words[0], ("situation",)))
        for words in firsts
    )
    return alike and "conditions" not in phrases


def parse_situation_policy(name: str, text: str) -> SituationTree:
    """Parses a policy with a situation; raises PolicyError with every fault.

    Rejects texts above 64 KiB or nested deeper than 50.
    """
    refuse_large(text, name=name)
    faults = Diagnostics(name, text)
    sections = SituationSections(text, faults)
    same: list[list[Token]] = []
    definitions: list[list[Token]] = []
    for line in sections.lines["concepts"]:
        (same if says_same(line) else definitions).append(line)
    concepts = parse_definitions(definitions, faults)
    aliases = frozenset(concept.alias for concept in concepts)
    may_be_same = _may_be_same(same, aliases, faults)
    lines = _SectionLines(aliases, faults)
    situation = lines.read(sections.lines["situation"], "situation")
    cleared_by = lines.read(sections.lines["cleared by"], "cleared by")
    if situation is None and not faults.has_errors():
        message = "the situation says only how often, not what must hold"
        place = sections.headers["situation"]
        faults.add("policy.no_condition", message, place, hint=_NEEDED["situation"])
    if not faults.has_errors():
        _report_unused(concepts, lines.used, faults)
    if faults.has_errors() or situation is None:
        raise PolicyError(faults.problems())
    return SituationTree(
        name=name,
        concepts=concepts,
        situation=situation,
        cleared_by=cleared_by,
        actions=tuple(sections.actions["actions"].actions()),
        cleared_actions=tuple(sections.actions["actions when cleared"].actions()),
        may_be_same=may_be_same,
        once_per_ms=lines.once_per_ms,
    )


class SituationSections:
    """The logical lines of each section; reports wrong names and a wrong order."""

    def __init__(self, text: str, faults: Diagnostics) -> None:
        self.faults = faults
        self.logical = {
            name: LogicalLines(faults, joined=name != "concepts")
            for name in (*SECTIONS[:3], "conditions")
        }
        self.actions = {name: ActionLines() for name in _ACTION_SECTIONS}
        self.headers: dict[str, SourceSpan] = {}
        self.section = ""
        self.strayed = False
        lines = text.splitlines()
        for number, line in enumerate(lines, start=1):
            self._line(line, number)
        self._close()
        self._report(SourceSpan(max(len(lines), 1), 1))

    def _line(self, line: str, number: int) -> None:
        phrase = phrase_of(line).lower()
        place = SourceSpan(number, len(line) - len(line.lstrip()) + 1, max(len(phrase), 1))
        if phrase in (*SECTIONS, "conditions"):
            self._enter(phrase, place)
        elif phrase == "while" and self.section not in _ACTION_SECTIONS:
            message = "'while' is for a policy with 'conditions'"
            hint = "put its lines into 'situation': all of them must hold"
            self.faults.add("policy.unknown_section", message, place, hint=hint)
        elif self.section == "actions" and phrase.startswith(("actions when", "actions if")):
            self._unknown(phrase, "actions when cleared", place)
        elif self.section in _ACTION_SECTIONS:
            self.actions[self.section].add(line, number)
        elif not self._misspelt(phrase, place):
            self._content(line, number)

    def _enter(self, name: str, place: SourceSpan) -> None:
        self._close()
        order = (*SECTIONS[:2], "conditions", *SECTIONS[2:])
        if name in self.headers:
            message = f"the section {name!r} was already opened in line {self.headers[name].line}"
            hint = "put all its lines into one section"
            self.faults.add("policy.repeated_section", message, place, hint=hint)
        elif name in _CONDITIONS and any(one in self.headers for one in _CONDITIONS):
            message = "a policy has either 'situation' or 'conditions'"
            hint = "take 'situation' for states that last and end, 'conditions' for events"
            self.faults.add("policy.two_conditions", message, place, hint=hint)
        elif any(order.index(seen) > order.index(name) for seen in self.headers):
            message = f"the section {name!r} comes too late"
            hint = f"the order is {', '.join(SECTIONS)}"
            self.faults.add("policy.section_order", message, place, hint=hint)
        self.headers.setdefault(name, place)
        self.section = name

    def _misspelt(self, phrase: str, place: SourceSpan) -> bool:
        """Enters the section that a misspelt header or one with a colon means; false if the line
        is none."""
        words = phrase.removesuffix(":").strip()
        for name, what in (("situation", "must hold"), ("cleared by", "ends it")):
            is_new = name != "situation" or name not in self.headers
            if words.startswith(f"{name} ") and is_new and not self._is_open():
                message = "the name of a section stands on a line of its own"
                hint = f"write what {what} in the lines below {name!r}"
                self.faults.add("policy.unknown_section", message, place, hint=hint)
                self._enter(name, place)
                return True
        meant = words if words in SECTIONS else nearest_word(words, SECTIONS)
        alike = words.count(" ") == meant.count(" ") and words[:1] == meant[:1]
        if words in ("cleared", "until", "clear", "resolved by", "ended by", "ends when"):
            meant, alike = "cleared by", "situation" in self.headers
        if not words or self._is_open() or not alike or meant in self.headers:
            return False
        self._unknown(phrase, meant, place)
        return True

    def _unknown(self, phrase: str, meant: str, place: SourceSpan) -> None:
        message = f"there is no section named {phrase!r}"
        self.faults.add("policy.unknown_section", message, place, hint=f"did you mean {meant!r}?")
        self._enter(meant, place)

    @property
    def lines(self) -> dict[str, list[list[Token]]]:
        """The tokens of each logical line by section."""
        return {name: found.lines for name, found in self.logical.items()}

    def _content(self, line: str, number: int) -> None:
        if self.section:
            self.logical[self.section].add(line, number)
            return
        tokens = tokenize_situation(line, number, self.faults)
        if tokens:
            self._stray(tokens[0])

    def _is_open(self) -> bool:
        """True within a line that goes on."""
        return self.section in self.logical and bool(self.logical[self.section].open)

    def _stray(self, token: Token) -> None:
        if not self.strayed:
            self.strayed = True
            message = "a policy begins with the line 'concepts' or 'situation'"
            hint = f"the name of a section stands on a line of its own: {', '.join(SECTIONS)}"
            self.faults.add("policy.no_section", message, token.place, hint=hint)

    def _close(self) -> None:
        if self.section in self.logical:
            self.logical[self.section].close()

    def _report(self, end: SourceSpan) -> None:
        """Reports sections that are missing or empty."""
        if self.faults.has_errors():
            return
        for name, hint in _FILLED.items():
            place = self.headers.get(name)
            if place is not None and not (self.lines.get(name) or self._has_actions(name)):
                message = f"the section {name!r} is empty"
                self.faults.add("policy.empty_section", message, place, hint=hint)
            elif place is not None or name not in _NEEDED:
                continue
            elif name != "situation" or not self._reported_clearing():
                message = f"the section {name!r} is missing"
                self.faults.add("policy.missing_section", message, end, hint=hint)

    def _reported_clearing(self) -> bool:
        """Reports the sections of a policy with `conditions` that only situations have; false
        without any."""
        own = [name for name in ("cleared by", "actions when cleared") if name in self.headers]
        if "conditions" in self.headers:
            for name in own:
                message = f"{name!r} is for a policy with 'situation'"
                hint = "'conditions' are events, which do not end; take 'situation' for what lasts"
                place = self.headers[name]
                self.faults.add("policy.cleared_conditions", message, place, hint=hint)
        return "conditions" in self.headers and bool(own)

    def _has_actions(self, name: str) -> bool:
        return name in self.actions and bool(self.actions[name].actions())


def says_same(line: list[Token]) -> bool:
    """True for `A and B may be the same` and for attempts at it."""
    words = [token.text.lower() for token in line]
    return words[-4:] == list(_SAME) or "may" in words[2:5] or words[1:2] == ["and"]


def _may_be_same(
    lines: list[list[Token]], aliases: frozenset[str], faults: Diagnostics
) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for line in lines:
        words = [token.text.lower() for token in line]
        if len(line) != 7 or words[1] != "and" or tuple(words[3:]) != _SAME:
            hint = "write it as: A and B may be the same"
            message = "expected two aliases that may be the same"
            faults.add("policy.bad_same", message, line[0].place, hint=hint)
            continue
        first, second = line[0], line[2]
        unknown = next((each for each in (first, second) if each.text not in aliases), None)
        if unknown is not None:
            message = f"there is no alias {unknown.text!r}"
            hint = did_you_mean(unknown.text, aliases) or "define it in the concepts"
            faults.add("policy.unknown_alias", message, unknown.place, hint=hint)
        elif first.text == second.text:
            hint = "write it as: A and B may be the same"
            faults.add("policy.bad_same", "the two aliases are equal", second.place, hint=hint)
        else:
            pairs.append((first.text, second.text))
    return tuple(pairs)


def _report_unused(concepts: tuple[ConceptDef, ...], used: set[str], faults: Diagnostics) -> None:
    for concept in concepts:
        if concept.alias not in used:
            message = f"neither 'situation' nor 'cleared by' names {concept.alias!r}"
            hint = "leave it out of the concepts, or say what must hold for it"
            faults.add("policy.unused_alias", message, concept.alias_place, hint=hint)


def format_line(tokens: list[Token], aliases: frozenset[str]) -> str:
    """A logical line of `situation` or `cleared by` that has no fault, in canonical form."""
    lines = _SectionLines(aliases, Diagnostics("", ""))
    found = lines.read([tokens], "situation")
    if found is None:
        assert lines.once_per_ms is not None, "the line has no fault"
        return f"at most once per {format_duration(lines.once_per_ms)}"
    return print_situation_condition(found)


class _SectionLines:
    """Reads the lines of `situation` and `cleared by`."""

    def __init__(self, aliases: frozenset[str], faults: Diagnostics) -> None:
        self.aliases = aliases
        self.faults = faults
        self.used: set[str] = set()
        self.once_per_ms: int | None = None

    def read(self, lines: list[list[Token]], section: str) -> Condition | None:
        """The lines joined by AND; None if there is none without fault."""
        kept = []
        for line in lines:
            try:
                if not self._once_per(TokenCursor(line), section):
                    kept.append(line)
            except SyntaxFault as fault:
                self.faults.add(fault.code, fault.message, fault.place, hint=fault.hint)
        found, used = read_lines(kept, self.aliases, self.faults)
        self.used |= used
        return found

    def _once_per(self, cursor: TokenCursor, section: str) -> bool:
        """Reads `at most once per 10 min`; false for any other line."""
        start = cursor.place()
        if cursor.reads("once", "per"):
            hint = f"write it as: {THROTTLE.example}"
            raise cursor.fault("policy.bad_once_per", "expected 'at most once per'", hint=hint)
        if not cursor.reads("at", "most", "once"):
            return False
        if not cursor.reads("at", "most", "once", "per"):
            hint = f"write it as: {THROTTLE.example}"
            message = "expected 'at most once per' and a time"
            raise cursor.fault("policy.bad_once_per", message, hint=hint)
        if section != "situation" or self.once_per_ms is not None:
            message = "'at most once per' stands once, in the section 'situation'"
            raise SyntaxFault("policy.repeated_option", message, start, "leave it out here")
        for _word in range(4):
            cursor.take()
        self.once_per_ms = read_duration(cursor, THROTTLE)
        if cursor.peek() is not None:
            hint = "put what follows on a line of its own"
            raise cursor.fault("policy.expected_end", "expected the end of the line", hint=hint)
        return True
