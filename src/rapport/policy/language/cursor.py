"""Walking over the tokens of one line, and the fault that ends the walk. [PO-3]"""

from __future__ import annotations

from collections.abc import Container, Sequence

from rapport.policy.language.tokens import Kind, Token
from rapport.policy.language.tree import SourceSpan


class SyntaxFault(Exception):
    """A line that cannot be understood; the parser notes it and goes on with the next line."""

    def __init__(self, code: str, message: str, place: SourceSpan, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.place, self.hint = code, message, place, hint


def span(first: SourceSpan, last: SourceSpan) -> SourceSpan:
    """From the beginning of `first` to the end of `last`; one character when that is in another
    line."""
    if first.line != last.line:
        return SourceSpan(first.line, first.column)
    return SourceSpan(first.line, first.column, last.column + last.length - first.column)


class TokenCursor:
    """A position in a sequence of at least one token."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._next = 0

    def peek(self, ahead: int = 0) -> Token | None:
        """The token `ahead` of the position, None past the end."""
        index = self._next + ahead
        return self._tokens[index] if index < len(self._tokens) else None

    def sees(self, kind: Kind, *texts: str, ahead: int = 0) -> bool:
        """True when the token there is of `kind` and, if any are given, reads like one of
        `texts`."""
        token = self.peek(ahead)
        return token is not None and token.kind == kind and (not texts or token.text in texts)

    def reads(self, *words: str) -> bool:
        """True when the next tokens are these words, in any case."""
        tokens = [self.peek(ahead) for ahead in range(len(words))]
        return all(
            token is not None and token.kind in ("word", "keyword") and token.text.lower() == word
            for token, word in zip(tokens, words, strict=True)
        )

    def word(self, ahead: int = 0) -> str:
        """The word there in lower case; empty when none stands there."""
        token = self.peek(ahead)
        return token.text.lower() if token is not None and token.kind == "word" else ""

    def names(self, aliases: Container[str], *, ahead: int = 0) -> bool:
        """True when one of the aliases stands there."""
        token = self.peek(ahead)
        return token is not None and token.kind == "word" and token.text in aliases

    def take(self) -> Token:
        """The next token, which must exist; moves on."""
        token = self._tokens[self._next]
        self._next += 1
        return token

    def take_if(self, kind: Kind, *texts: str) -> Token | None:
        """The next token when `sees` says so; otherwise None, and the position stays."""
        return self.take() if self.sees(kind, *texts) else None

    def name(self, code: str, what: str, hint: str) -> Token:
        """The next token, which must be a name; raises a fault that expects `what`."""
        token = self.take_if("word")
        if token is not None:
            return token
        found = self.peek()
        if found is not None and found.kind in ("keyword", "header"):
            message = f"expected {what}, but {found.text.upper()} is a word of the language"
            raise self.fault("policy.reserved_name", message, hint="choose another name")
        raise self.fault(code, f"expected {what}", hint=hint)

    def last_place(self) -> SourceSpan:
        """Where the token stands that was taken last; the first one's before any."""
        return self._tokens[max(self._next - 1, 0)].place

    def place(self) -> SourceSpan:
        """Where the next token stands; just past the last one at the end."""
        token = self.peek()
        if token is not None:
            return token.place
        last = self._tokens[-1].place
        return SourceSpan(last.line, last.column + last.length)

    def fault(self, code: str, message: str, *, hint: str = "") -> SyntaxFault:
        """A fault at the next token."""
        return SyntaxFault(code, message, self.place(), hint)
