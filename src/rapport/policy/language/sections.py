"""Cutting a policy text into its three sections and those into logical lines. [PO-3]"""

from __future__ import annotations

from rapport.policy.language.faults import Diagnostics, nearest_word
from rapport.policy.language.misspelt import CONNECTIVES
from rapport.policy.language.tokens import HEADERS, Token, phrase_of, tokenize_line
from rapport.policy.language.tree import Action, Delivery, SourceSpan

_OTHER_NAMES = {
    **dict.fromkeys(("rules", "rule", "if", "when", "where"), "conditions"),
    **dict.fromkeys(("do", "then", "reaction", "reactions"), "actions"),
}
"""What people call the further sections."""
_EMPTY_HINTS = {
    "concepts": "name what the policy speaks of, such as: room R (security='restricted')",
    "conditions": "say what must hold, such as: A is inside R",
    "actions": "say what to do, such as: raise alarm",
}


class Sections:
    """The logical lines of each section; a line is a list of tokens, an action a phrase."""

    def __init__(self) -> None:
        self.concepts: list[list[Token]] = []
        self.conditions: list[list[Token]] = []
        self.actions: list[Action] = []
        self.headers: dict[str, SourceSpan] = {}
        self.faulty: set[str] = set()
        """Sections in which a character was not understood, so that an empty one is no second
        fault."""


def split_sections(text: str, faults: Diagnostics) -> Sections:
    """Cuts the text; faults in the order or the names of sections are noted, and reading goes
    on."""
    return _Splitter(text, faults).split()


class _Splitter:
    """Reads the lines from top to bottom and remembers which section it is in."""

    def __init__(self, text: str, faults: Diagnostics) -> None:
        self.lines = text.splitlines()
        self.faults = faults
        self.found = Sections()
        self.section = ""
        self.headers = self.found.headers
        self.open: list[Token] = []
        self.open_parentheses = 0
        self.strayed = False
        self.action_column = 0
        self.deliveries: list[list[Delivery]] = []
        """Of each action the lines below it."""

    def split(self) -> Sections:
        for number, line in enumerate(self.lines, start=1):
            if self.section == "actions" and phrase_of(line).lower() not in HEADERS:
                self._action(line, number, 0)
            else:
                self._tokens(line, number)
        self._close_line()
        self.found.actions = [
            Action(action.phrase, action.place, tuple(delivery))
            for action, delivery in zip(self.found.actions, self.deliveries, strict=True)
        ]
        self._report_missing()
        return self.found

    def _tokens(self, line: str, number: int) -> None:
        before = self.faults.count
        tokens = tokenize_line(line, number, self.faults)
        alone = len(tokens) == 1
        if self.faults.count != before:
            self.found.faulty.add(self.section)
            # A line that was not read in full is not judged further, only its header counts.
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
                self._action(line, number, token.place.column - 1 + token.place.length)
        if not self._line_goes_on():
            self._close_line()

    def _mended(self, token: Token) -> Token:
        """A misspelt header becomes the header that was meant, with a fault."""
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
        """The header that a word alone in its line probably is; empty when it is none."""
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

    def _action(self, line: str, number: int, start: int) -> None:
        """An action, or a line of the one above when it stands further to the right."""
        phrase = phrase_of(line[start:])
        if not phrase:
            return
        indent = len(line[start:]) - len(line[start:].lstrip())
        column = len(line[: start + indent].expandtabs())
        place = SourceSpan(number, start + indent + 1, len(phrase))
        if self.deliveries and column > self.action_column:
            self.deliveries[-1].append(Delivery(phrase, place))
        else:
            self.found.actions.append(Action(phrase, place))
            self.deliveries.append([])
            self.action_column = column

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
        filled = {
            "concepts": bool(self.found.concepts),
            "conditions": bool(self.found.conditions),
            "actions": bool(self.found.actions),
        }
        end = SourceSpan(max(len(self.lines), 1), 1)
        for name in HEADERS:
            if name not in self.headers:
                # What stands before the first section was noted already; it may be any of them.
                if not self.strayed:
                    message = f"the section {name!r} is missing"
                    hint = f"add the line {name!r}, and below it {_EMPTY_HINTS[name]}"
                    self.faults.add("policy.missing_section", message, end, hint=hint)
            elif not filled[name] and name not in self.found.faulty:
                message = f"the section {name!r} is empty"
                place = self.headers[name]
                self.faults.add("policy.empty_section", message, place, hint=_EMPTY_HINTS[name])
