"""The optional lines of ours among the conditions: `within 5 s`, `consume recent`, `distinct A, B`,
`when unsure fire`. [PO-3]
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from rapport.core.errors import InvalidInput
from rapport.core.times import parse_duration
from rapport.policy.language.cursor import Cursor, SyntaxFault
from rapport.policy.language.faults import did_you_mean
from rapport.policy.language.tokens import Token
from rapport.policy.language.tree import Consumption, Place, WhenUnsure

OPTION_WORDS = ("within", "consume", "distinct", "when")
_LONGEST_WINDOW_MS = 366 * 86_400_000
_MODES: dict[str, Consumption] = {"chronicle": "chronicle", "recent": "recent"}
_WHEN_UNSURE: dict[str, WhenUnsure] = {"hold": "hold", "fire": "fire"}


class Options:
    """What the optional lines said; each may stand once, `distinct` any number of times."""

    def __init__(self) -> None:
        self.window_ms: int | None = None
        self.consumption: Consumption = "chronicle"
        self.distinct: list[tuple[str, str]] = []
        self.when_unsure: WhenUnsure = "hold"
        self._seen: dict[str, Place] = {}

    def read(self, tokens: list[Token], aliases: frozenset[str]) -> bool:
        """Takes the line when it is an option, otherwise returns False; raises SyntaxFault."""
        cursor = Cursor(tokens)
        first = tokens[0]
        if first.kind != "word" or first.text in aliases:
            return False
        if cursor.reads("within") and cursor.sees("number", ahead=1):
            self._once("within", cursor.take().place, lambda: self._window(cursor))
        elif cursor.reads("consume"):
            self._once("consume", cursor.take().place, lambda: self._consume(cursor))
        elif cursor.reads("when"):
            self._once("when unsure", cursor.take().place, lambda: self._unsure(cursor))
        elif cursor.reads("distinct"):
            cursor.take()
            self._distinct(cursor, aliases)
        else:
            return False
        if cursor.peek() is not None:
            hint = "put what follows on a line of its own"
            raise cursor.fault("policy.expected_end", "expected the end of the line", hint=hint)
        return True

    def _once(self, name: str, place: Place, read: Callable[[], None]) -> None:
        if name in self._seen:
            line = self._seen[name].line
            message = f"{name!r} was already said in line {line}"
            raise SyntaxFault("policy.repeated_option", message, place, "leave one of them out")
        read()
        self._seen[name] = place

    def _window(self, cursor: Cursor) -> None:
        number = cursor.take()
        unit = cursor.take_if("word")
        written = number.text + (unit.text if unit else "")
        if unit is not None and unit.text == "m":
            raise SyntaxFault(
                "policy.ambiguous_unit",
                "'m' can be metres or minutes",
                unit.place,
                f"write {number.text} min for a window in minutes",
            )
        try:
            window_ms = parse_duration(written)
        except (InvalidInput, OverflowError):
            hint = "write a time and its unit, such as: within 5 s"
            raise SyntaxFault(
                "policy.bad_window", f"{written[:40]!r} is not a window", number.place, hint
            ) from None
        if not 0 < window_ms <= _LONGEST_WINDOW_MS:
            raise SyntaxFault(
                "policy.bad_window",
                "a window is longer than nothing and at most 366 days",
                number.place,
                "write a time and its unit, such as: within 5 s",
            )
        self.window_ms = window_ms

    def _consume(self, cursor: Cursor) -> None:
        mode = cursor.take_if("word")
        if mode is None or mode.text.lower() not in _MODES:
            place = mode.place if mode else cursor.place()
            hint = did_you_mean(mode.text.lower() if mode else "", _MODES)
            raise SyntaxFault(
                "policy.bad_consumption", "expected 'chronicle' or 'recent'", place, hint
            )
        self.consumption = _MODES[mode.text.lower()]

    def _unsure(self, cursor: Cursor) -> None:
        unsure, choice = cursor.take_if("word"), cursor.take_if("word")
        said = [word.text.lower() for word in (unsure, choice) if word is not None]
        if len(said) == 2 and said[0] == "unsure" and said[1] in _WHEN_UNSURE:
            self.when_unsure = _WHEN_UNSURE[said[1]]
            return
        wrong = choice if said[:1] == ["unsure"] else unsure
        raise SyntaxFault(
            "policy.bad_when_unsure",
            "expected 'when unsure fire' or 'when unsure hold'",
            wrong.place if wrong else cursor.place(),
            "fire: absence counts even if a source that should have been heard was silent",
        )

    def _distinct(self, cursor: Cursor, aliases: frozenset[str]) -> None:
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

    def _alias(self, cursor: Cursor, aliases: frozenset[str]) -> str:
        token = cursor.peek()
        if token is None or token.kind != "word":
            raise cursor.fault("policy.missing_alias", "expected an alias", hint="distinct A, B")
        if token.text not in aliases:
            raise cursor.fault(
                "policy.unknown_alias",
                f"there is no alias {token.text!r}",
                hint=did_you_mean(token.text, aliases),
            )
        return cursor.take().text
