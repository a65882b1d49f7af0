"""The optional lines of ours among the conditions: `within 5 s`, `consume recent`, `distinct A, B`,
`when unsure fire`, `at most once per 10 min`. [PO-3]
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from rapport.core.times import format_duration
from rapport.policy.language.cursor import SyntaxFault, TokenCursor
from rapport.policy.language.durations import THROTTLE, WINDOW, read_duration
from rapport.policy.language.faults import did_you_mean, nearest_word
from rapport.policy.language.misspelt import first_misspelt, misspelling, misspelt_option
from rapport.policy.language.tokens import Token
from rapport.policy.language.tree import Consumption, SourceSpan, WhenUnsure

_MODES: dict[str, Consumption] = {"chronicle": "chronicle", "recent": "recent"}
_IN_WORDS: dict[str, Consumption] = {"oldest": "chronicle", "newest": "recent"}
_WHEN_UNSURE: dict[str, WhenUnsure] = {"hold": "hold", "fire": "fire"}


class Options:
    """What the optional lines said; each may stand once, `distinct` any number of times."""

    def __init__(self) -> None:
        self.window_ms: int | None = None
        self.consumption: Consumption = "chronicle"
        self.distinct: list[tuple[str, str]] = []
        self.when_unsure: WhenUnsure = "hold"
        self.once_per_ms: int | None = None
        self._seen: dict[str, SourceSpan] = {}

    def read(self, tokens: list[Token], aliases: frozenset[str]) -> str:
        """Takes the line when it is an option and returns its canonical text, otherwise an empty
        one; raises SyntaxFault."""
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
            message = f"{name!r} was already said in line {line}"
            raise SyntaxFault("policy.repeated_option", message, place, "leave one of them out")
        text = read(cursor)
        self._seen[name] = place
        return text

    def _window(self, cursor: TokenCursor) -> str:
        cursor.take()
        self.window_ms = read_duration(cursor, WINDOW)
        return f"within {format_duration(self.window_ms)}"

    def _once_per(self, cursor: TokenCursor) -> str:
        """`at most once per 10 min`, and what is nearly that."""
        start = cursor.place()
        said = self._words(cursor, limit=4)
        if [word.text.lower() for word in said] == ["at", "most", "once", "per"]:
            self.once_per_ms = read_duration(cursor, THROTTLE)
            return f"at most once per {format_duration(self.once_per_ms)}"
        wrong = first_misspelt(said, ("at", "most", "once", "per"))
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
        """`use the newest first`: the consumption in words."""
        cursor.take()
        said = self._words(cursor, limit=3)
        words = [word.text.lower() for word in said]
        if words[:1] == ["the"] and words[2:] in ([], ["first"]) and words[1] in _IN_WORDS:
            self.consumption = _IN_WORDS[words[1]]
            return f"consume {self.consumption}"
        which = next((meant for word in words if (meant := nearest_word(word, _IN_WORDS))), "")
        wrong = first_misspelt(said, ("the", which or "newest", "first"))
        if wrong is not None:
            raise misspelling("policy.bad_consumption", *wrong)
        raise SyntaxFault(
            "policy.bad_consumption",
            "expected 'use the newest first' or 'use the oldest first'",
            said[0].place if said else cursor.place(),
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
        said = [word.text.lower() for word in (unsure, choice) if word is not None]
        if len(said) == 2 and said[0] == "unsure" and said[1] in _WHEN_UNSURE:
            self.when_unsure = _WHEN_UNSURE[said[1]]
            return f"when unsure {self.when_unsure}"
        wrong = choice if said[:1] == ["unsure"] else unsure
        if wrong is not None:
            known = _WHEN_UNSURE if wrong is choice else ["unsure"]
            meant = nearest_word(wrong.text.lower(), known)
            if meant:
                raise misspelling("policy.bad_when_unsure", wrong, meant)
        raise SyntaxFault(
            "policy.bad_when_unsure",
            "expected 'when unsure fire' or 'when unsure hold'",
            wrong.place if wrong else cursor.place(),
            "fire: absence counts even if a source that should have been heard was silent",
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
