"""Parses a policy text: splits it into sections and logical lines, reads the options among the
conditions and builds the tree. [PO-3]

Reports all faults at once: a faulty line is reported and skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from rapport.core.errors import PolicyError
from rapport.core.times import format_duration
from rapport.policy.language.conditions import parse_condition
from rapport.policy.language.definitions import parse_definitions
from rapport.policy.language.diagnostics import Diagnostics, did_you_mean, nearest_word
from rapport.policy.language.lexer import (
    HEADERS,
    SyntaxFault,
    Token,
    TokenCursor,
    phrase_of,
    tokenize_line,
)
from rapport.policy.language.quantities import THROTTLE, WINDOW, read_duration
from rapport.policy.language.situation_conditions import LogicalLines, read_lines
from rapport.policy.language.spelling import (
    CONNECTIVES,
    first_misspelt,
    misspelling,
    misspelt_option,
)
from rapport.policy.language.tree import (
    Action,
    And,
    Consumption,
    Delivery,
    Expression,
    PolicyTree,
    SourceSpan,
    WhenUnsure,
)

_OTHER_NAMES = {
    **dict.fromkeys(("rules", "rule", "if", "when", "where"), "conditions"),
    **dict.fromkeys(("do", "then", "reaction", "reactions"), "actions"),
}
"""Common other names of sections."""
_EMPTY_HINTS = {
    "concepts": "name what the policy speaks of, such as: room R (security='restricted')",
    "conditions": "say what must hold, such as: A is inside R",
    "actions": "say what to do, such as: raise alarm",
}
_MODES: dict[str, Consumption] = {"chronicle": "chronicle", "recent": "recent"}
_IN_WORDS: dict[str, Consumption] = {"oldest": "chronicle", "newest": "recent"}
_WHEN_UNSURE: dict[str, WhenUnsure] = {"hold": "hold", "fire": "fire"}
MAX_BYTES = 64 * 1024
GUARD = "while"
"""The section that must be true at the time of a detection."""


class Sections:
    """The logical lines of each section; a line is a list of tokens, an action a phrase."""

    def __init__(self) -> None:
        self.concepts: list[list[Token]] = []
        self.conditions: list[list[Token]] = []
        self.guard: list[list[Token]] = []
        self.actions: list[Action] = []
        self.headers: dict[str, SourceSpan] = {}
        self.guard_header: SourceSpan | None = None
        self.faulty: set[str] = set()
        """Sections with an unknown character, so that an empty one is not reported again."""


def split_sections(text: str, faults: Diagnostics) -> Sections:
    """Splits the text; reports wrong names and a wrong order of sections and continues."""
    return _Splitter(text, faults).split()


class ActionLines:
    """Collects the lines of a section of actions."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._deliveries: list[list[Delivery]] = []
        self._column = 0

    def add(self, line: str, number: int, start: int = 0) -> None:
        """Adds an action or, if the line is indented further, a delivery line of the last
        action."""
        phrase = phrase_of(line[start:])
        if not phrase:
            return
        indent = len(line[start:]) - len(line[start:].lstrip())
        column = len(line[: start + indent].expandtabs())
        place = SourceSpan(number, start + indent + 1, len(phrase))
        if self._actions and column > self._column:
            self._deliveries[-1].append(Delivery(phrase, place))
        else:
            self._actions.append(Action(phrase, place))
            self._deliveries.append([])
            self._column = column

    def actions(self) -> list[Action]:
        return [
            Action(action.phrase, action.place, tuple(delivery))
            for action, delivery in zip(self._actions, self._deliveries, strict=True)
        ]


class _Splitter:
    """Reads lines from top to bottom and keeps the current section."""

    def __init__(self, text: str, faults: Diagnostics) -> None:
        self.lines = text.splitlines()
        self.faults = faults
        self.found = Sections()
        self.section = ""
        self.headers = self.found.headers
        self.open: list[Token] = []
        self.open_parentheses = 0
        self.strayed = False
        self.guard = LogicalLines(faults)
        self.actions = ActionLines()

    def split(self) -> Sections:
        for number, line in enumerate(self.lines, start=1):
            phrase = phrase_of(line).lower()
            if self.section == "actions" and phrase not in HEADERS:
                self.actions.add(line, number)
            elif phrase.removesuffix(":").strip() == GUARD:
                self._enter_guard(phrase, line, number)
            elif self.section == GUARD and phrase.partition(" ")[0] not in HEADERS:
                before = self.faults.count
                self.guard.add(line, number)
                if self.faults.count != before:
                    self.found.faulty.add(GUARD)
            else:
                self._tokens(line, number)
        self._close_line()
        self.guard.close()
        self.found.guard = self.guard.lines
        self.found.actions = self.actions.actions()
        self._report_missing()
        return self.found

    def _tokens(self, line: str, number: int) -> None:
        before = self.faults.count
        tokens = tokenize_line(line, number, self.faults)
        alone = len(tokens) == 1
        if self.faults.count != before:
            self.found.faulty.add(self.section)
            # Of a line with unknown characters only its header counts.
            tokens = [token for token in tokens if token.kind == "header"] or [
                Token("header", meant, token.place)
                for token in tokens
                if alone and (meant := self._meant(token))
            ]
        tokens = [self._mended(token) if alone else token for token in tokens]
        for token in tokens:
            if token.kind != "header":
                self._content(token)
                continue
            self._enter(token)
            if token.text == "actions":
                self.actions.add(line, number, token.place.column - 1 + token.place.length)
        if not self._line_goes_on():
            self._close_line()

    def _mended(self, token: Token) -> Token:
        """Replaces a misspelt header by the intended one and reports it."""
        meant = self._meant(token)
        if not meant:
            return token
        self.faults.add(
            "policy.unknown_section",
            f"there is no section named {token.text!r}",
            token.place,
            hint=f"did you mean {meant!r}?",
        )
        return Token("header", meant, token.place)

    def _meant(self, token: Token) -> str:
        """The header that a single word in a line probably means; empty if none."""
        if token.kind != "word" or self.open:
            return ""
        word = token.text.lower()
        meant = nearest_word(word, HEADERS)
        alike = word[:1] == meant[:1] or sorted(word) == sorted(meant)
        if self.section and word in _OTHER_NAMES:
            meant, alike = _OTHER_NAMES[word], True
        if meant in self.headers:
            return ""
        return meant if alike else ""

    def _content(self, token: Token) -> None:
        if self.section:
            self.open.append(token)
            if token.kind == "mark":
                self.open_parentheses += {"(": 1, ")": -1}.get(token.text, 0)
        elif not self.strayed:
            self.strayed = True
            self.faults.add(
                "policy.no_section",
                "a policy begins with the line 'concepts'",
                token.place,
                hint="write the sections concepts, conditions and actions, in this order",
            )

    def _enter(self, header: Token) -> None:
        self._close_line()
        if header.text in self.headers:
            first = self.headers[header.text]
            self.faults.add(
                "policy.repeated_section",
                f"the section {header.text!r} was already opened in line {first.line}",
                header.place,
                hint="put all its lines into one section",
            )
        elif any(HEADERS.index(seen) > HEADERS.index(header.text) for seen in self.headers):
            self.faults.add(
                "policy.section_order",
                f"the section {header.text!r} comes too late",
                header.place,
                hint="the order is concepts, conditions, actions",
            )
        self.headers.setdefault(header.text, header.place)
        self.section = header.text

    def _enter_guard(self, phrase: str, line: str, number: int) -> None:
        self._close_line()
        place = SourceSpan(number, len(line) - len(line.lstrip()) + 1, len(phrase))
        header = self.found.guard_header
        if phrase != GUARD:
            message = f"there is no section named {phrase!r}"
            hint = f"did you mean {GUARD!r}?"
            self.faults.add("policy.unknown_section", message, place, hint=hint)
        elif header is not None:
            message = f"the section {GUARD!r} was already opened in line {header.line}"
            hint = "put all its lines into one section"
            self.faults.add("policy.repeated_section", message, place, hint=hint)
        elif self.section != "conditions":
            message = f"the section {GUARD!r} comes too early"
            hint = "the order is concepts, conditions, while, actions"
            self.faults.add("policy.section_order", message, place, hint=hint)
        self.found.guard_header, self.section = header or place, GUARD

    def _line_goes_on(self) -> bool:
        if not self.open or self.section != "conditions":
            return False
        joins = self.open[-1].kind == "keyword" and self.open[-1].text in CONNECTIVES
        return joins or self.open_parentheses > 0

    def _close_line(self) -> None:
        if self.open:
            lines = self.found.concepts if self.section == "concepts" else self.found.conditions
            lines.append(self.open)
            self.open = []
        self.open_parentheses = 0

    def _report_missing(self) -> None:
        guard = self.found.guard_header
        if guard is not None and not self.found.guard and GUARD not in self.found.faulty:
            message = f"the section {GUARD!r} is empty"
            hint = "say what must be true at the time of a detection, or leave the section out"
            self.faults.add("policy.empty_section", message, guard, hint=hint)
        filled = {
            "concepts": bool(self.found.concepts),
            "conditions": bool(self.found.conditions),
            "actions": bool(self.found.actions),
        }
        end = SourceSpan(max(len(self.lines), 1), 1)
        for name in HEADERS:
            if name not in self.headers:
                # Text before the first section was reported; it may belong to any section.
                if not self.strayed:
                    message = f"the section {name!r} is missing"
                    hint = f"add the line {name!r}, and below it {_EMPTY_HINTS[name]}"
                    self.faults.add("policy.missing_section", message, end, hint=hint)
            elif not filled[name] and name not in self.found.faulty:
                message = f"the section {name!r} is empty"
                place = self.headers[name]
                self.faults.add("policy.empty_section", message, place, hint=_EMPTY_HINTS[name])


class Options:
    """The optional lines: `within 5 s`, `consume recent`, `distinct A, B`, `when unsure fire`, `at
    most once per 10 min`. Each may appear once, `distinct` repeatedly."""

    def __init__(self) -> None:
        self.window_ms: int | None = None
        self.consumption: Consumption = "chronicle"
        self.distinct: list[tuple[str, str]] = []
        self.when_unsure: WhenUnsure = "hold"
        self.once_per_ms: int | None = None
        self._seen: dict[str, SourceSpan] = {}

    def read(self, tokens: list[Token], aliases: frozenset[str]) -> str:
        """Reads the line if it is an option and returns its canonical text, else an empty one;
        raises SyntaxFault."""
        cursor = TokenCursor(tokens)
        if tokens[0].kind != "word" or tokens[0].text in aliases:
            return ""
        text = self._option(cursor, aliases)
        if text and cursor.peek() is not None:
            hint = "put what follows on a line of its own"
            raise cursor.fault("policy.expected_end", "expected the end of the line", hint=hint)
        return text

    def _option(self, cursor: TokenCursor, aliases: frozenset[str]) -> str:
        near = cursor.sees("keyword", "of", ahead=2) or cursor.sees("keyword", "of", ahead=3)
        if cursor.reads("within") and cursor.sees("number", ahead=1) and not near:
            return self._once("within", cursor, self._window)
        if cursor.reads("consume"):
            return self._once("consume", cursor, self._consume)
        if cursor.reads("use"):
            return self._once("consume", cursor, self._use)
        if cursor.reads("at") or cursor.reads("once", "per"):
            return self._once("at most once per", cursor, self._once_per)
        if cursor.reads("when") and not cursor.names(aliases, ahead=1):
            return self._once("when unsure", cursor, self._unsure)
        if cursor.reads("distinct"):
            return self._distinct(cursor, aliases)
        fault = misspelt_option(cursor, aliases)
        if fault is not None:
            raise fault
        return ""

    def _once(self, name: str, cursor: TokenCursor, read: Callable[[TokenCursor], str]) -> str:
        place = cursor.place()
        if name in self._seen:
            line = self._seen[name].line
            message = f"{name!r} was already set in line {line}"
            raise SyntaxFault("policy.repeated_option", message, place, "leave one of them out")
        text = read(cursor)
        self._seen[name] = place
        return text

    def _window(self, cursor: TokenCursor) -> str:
        cursor.take()
        self.window_ms = read_duration(cursor, WINDOW)
        return f"within {format_duration(self.window_ms)}"

    def _once_per(self, cursor: TokenCursor) -> str:
        """Reads `at most once per 10 min` and reports near misses."""
        start = cursor.place()
        words_read = self._words(cursor, limit=4)
        if [word.text.lower() for word in words_read] == ["at", "most", "once", "per"]:
            self.once_per_ms = read_duration(cursor, THROTTLE)
            return f"at most once per {format_duration(self.once_per_ms)}"
        wrong = first_misspelt(words_read, ("at", "most", "once", "per"))
        if wrong is not None:
            raise misspelling("policy.bad_once_per", *wrong)
        raise SyntaxFault(
            "policy.bad_once_per",
            "expected 'at most once per' and a time",
            start,
            f"write it as: {THROTTLE.example}",
        )

    def _words(self, cursor: TokenCursor, *, limit: int) -> list[Token]:
        words: list[Token] = []
        while len(words) < limit and (word := cursor.take_if("word")) is not None:
            words.append(word)
        return words

    def _use(self, cursor: TokenCursor) -> str:
        """Reads `use the newest first`, the consumption in words."""
        cursor.take()
        words_read = self._words(cursor, limit=3)
        words = [word.text.lower() for word in words_read]
        if words[:1] == ["the"] and words[2:] in ([], ["first"]) and words[1] in _IN_WORDS:
            self.consumption = _IN_WORDS[words[1]]
            return f"consume {self.consumption}"
        which = next((meant for word in words if (meant := nearest_word(word, _IN_WORDS))), "")
        wrong = first_misspelt(words_read, ("the", which or "newest", "first"))
        if wrong is not None:
            raise misspelling("policy.bad_consumption", *wrong)
        raise SyntaxFault(
            "policy.bad_consumption",
            "expected 'use the newest first' or 'use the oldest first'",
            words_read[0].place if words_read else cursor.place(),
            f"write: use the {which or 'newest'} first (of the readings that fit)",
        )

    def _consume(self, cursor: TokenCursor) -> str:
        cursor.take()
        mode = cursor.take_if("word")
        if mode is None or mode.text.lower() not in _MODES:
            place = mode.place if mode else cursor.place()
            hint = did_you_mean(mode.text.lower() if mode else "", _MODES)
            raise SyntaxFault(
                "policy.bad_consumption", "expected 'chronicle' or 'recent'", place, hint
            )
        self.consumption = _MODES[mode.text.lower()]
        return f"consume {self.consumption}"

    def _unsure(self, cursor: TokenCursor) -> str:
        cursor.take()
        unsure, choice = cursor.take_if("word"), cursor.take_if("word")
        words_read = [word.text.lower() for word in (unsure, choice) if word is not None]
        if len(words_read) == 2 and words_read[0] == "unsure" and words_read[1] in _WHEN_UNSURE:
            self.when_unsure = _WHEN_UNSURE[words_read[1]]
            return f"when unsure {self.when_unsure}"
        wrong = choice if words_read[:1] == ["unsure"] else unsure
        if wrong is not None:
            known = _WHEN_UNSURE if wrong is choice else ["unsure"]
            meant = nearest_word(wrong.text.lower(), known)
            if meant:
                raise misspelling("policy.bad_when_unsure", wrong, meant)
        raise SyntaxFault(
            "policy.bad_when_unsure",
            "expected 'when unsure fire' or 'when unsure hold'",
            wrong.place if wrong else cursor.place(),
            "fire: absence counts even if a source that should have sent readings was silent",
        )

    def _distinct(self, cursor: TokenCursor, aliases: frozenset[str]) -> str:
        cursor.take()
        names = [self._alias(cursor, aliases)]
        while cursor.take_if("mark", ",") or cursor.take_if("keyword", "and"):
            names.append(self._alias(cursor, aliases))
        if len(set(names)) < max(len(names), 2):
            raise cursor.fault(
                "policy.bad_distinct",
                "'distinct' names at least two different aliases",
                hint="write it as: distinct A, B",
            )
        for pair in combinations(names, 2):
            if pair not in self.distinct and pair[::-1] not in self.distinct:
                self.distinct.append(pair)
        return f"distinct {', '.join(names)}"

    def _alias(self, cursor: TokenCursor, aliases: frozenset[str]) -> str:
        token = cursor.peek()
        if token is None or token.kind != "word":
            raise cursor.fault("policy.missing_alias", "expected an alias", hint="distinct A, B")
        if token.text not in aliases:
            raise cursor.fault(
                "policy.unknown_alias",
                f"there is no alias {token.text!r}",
                hint=did_you_mean(token.text, aliases) or "define it in the concepts",
            )
        return cursor.take().text


def parse_policy(text: str, *, name: str) -> PolicyTree:
    """Parses a policy; raises PolicyError with every fault.

    Takes linear time; rejects texts above 64 KiB or nested deeper than 50.
    """
    refuse_large(text, name=name)
    faults = Diagnostics(name, text)
    _refuse_situation(text, faults)
    sections = split_sections(text, faults)
    concepts = parse_definitions(sections.concepts, faults)
    options = Options()
    aliases = frozenset(concept.alias for concept in concepts)
    guard, _used = read_lines(sections.guard, aliases, faults)
    parts = _conditions(sections.conditions, aliases, options, faults)
    if not parts and not faults.has_errors():
        place = sections.conditions[0][0].place
        hint = "add a line such as: A is inside R"
        faults.add("policy.no_condition", "the policy has no condition", place, hint=hint)
    if faults.has_errors():
        raise PolicyError(faults.problems())
    return PolicyTree(
        name=name,
        concepts=concepts,
        condition=parts[0] if len(parts) == 1 else And(tuple(parts)),
        actions=tuple(sections.actions),
        window_ms=options.window_ms,
        consumption=options.consumption,
        distinct=tuple(options.distinct),
        when_unsure=options.when_unsure,
        once_per_ms=options.once_per_ms,
        guard=guard,
    )


def refuse_large(text: str, *, name: str) -> None:
    """Raises PolicyError for a text above 64 KiB."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        faults = Diagnostics(name, "")
        faults.add(
            "policy.too_large", "a policy is at most 64 KiB long", hint="split it into several"
        )
        raise PolicyError(faults.problems())


def _refuse_situation(text: str, faults: Diagnostics) -> None:
    """Raises PolicyError for a text with a section `situation`, which has a parser of its own."""
    for number, line in enumerate(text.splitlines(), start=1):
        header = phrase_of(line).lower()
        if header == "actions":
            return
        if header == "situation":
            faults.add(
                "policy.has_situation",
                "a policy with the section 'situation' is not parsed here",
                SourceSpan(number, len(line) - len(line.lstrip()) + 1, len(header)),
                hint="parse it with parse_situation_policy",
            )
            raise PolicyError(faults.problems())


def parse_expression(text: str) -> Expression:
    """Parses a single condition line; raises PolicyError."""
    faults = Diagnostics("condition", text)
    tokens = tokenize_line(text, 1, faults)
    if not tokens:
        faults.add("policy.no_condition", "there is no condition", hint="such as: A is inside R")
    parts = _conditions([tokens] if tokens else [], frozenset(), Options(), faults)
    if faults.has_errors():
        raise PolicyError(faults.problems())
    return parts[0]


def _conditions(
    lines: list[list[Token]], aliases: frozenset[str], options: Options, faults: Diagnostics
) -> list[Expression]:
    parts: list[Expression] = []
    for line in lines:
        try:
            if not options.read(line, aliases):
                parts.append(parse_condition(line, aliases))
        except SyntaxFault as fault:
            faults.add(fault.code, fault.message, fault.place, hint=fault.hint)
    return parts
