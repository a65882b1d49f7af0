"""Walking over the tokens of a condition, and the faults on the way. [CH-4]"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rapport.channel.query.faults import QueryError, query_fault
from rapport.channel.query.tokens import Kind, Token, tokenize

MAX_DEPTH = 32
"""How deep parentheses, NOTs and signs may nest."""
MAX_ARITHMETIC = 50
"""Most +, -, *, / in one condition: each may nest the tree by one, wherever it stands."""
MAX_MIXED = 64
"""Most characters, in one condition, of LIKE pieces between two `%` that have `_` between letters:
the only part of a condition whose cost is not linear in the text it is tried on.
"""


class Cursor:
    """A position in the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._next, self._depth, self._arithmetic, self._mixed = 0, 0, 0, 0

    def sees(self, kind: Kind, *texts: str) -> bool:
        """Whether the next token is of `kind` and, if any are given, reads like one of `texts`."""
        token = self._tokens[self._next]
        return token.kind == kind and (not texts or token.text in texts)

    def take(self) -> Token:
        """The next token; moves on, but never past the end."""
        token = self._tokens[self._next]
        self._next += token.kind != "end"
        return token

    def take_if(self, kind: Kind, *texts: str) -> Token | None:
        """The next token when `sees` says so; otherwise None, and the position stays."""
        return self.take() if self.sees(kind, *texts) else None

    def expect(self, kind: Kind, *texts: str, what: str) -> Token:
        """The next token, which must be this one; the error says that `what` was expected."""
        if not self.sees(kind, *texts):
            raise self.fault("query.unexpected", f"expected {what}, found {self.shown()}")
        return self.take()

    def take_name(self) -> str:
        """The next token as it was written; a keyword may be the name of a member."""
        token = self.take()
        written = self._text[token.offset : token.offset + len(token.text)]
        return written if token.kind == "keyword" else token.text

    def offset(self) -> int:
        """Where the next token begins."""
        return self._tokens[self._next].offset

    def shown(self) -> str:
        """The next token as an error names it."""
        token = self._tokens[self._next]
        return "the end" if token.kind == "end" else repr(token.text[:40])

    def fault(self, code: str, message: str, hint: str = "") -> QueryError:
        """A fault at the next token."""
        return self.fault_at(self.offset(), code, message, hint)

    def fault_at(self, offset: int, code: str, message: str, hint: str = "") -> QueryError:
        """A fault at a place of the text."""
        return query_fault(self._text, offset, code, message, hint)

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """One level down while the block runs; raises QueryError when that is too deep."""
        if self._depth == MAX_DEPTH:
            raise self.fault("query.too_deep", f"nested more than {MAX_DEPTH} levels deep")
        self._depth += 1
        yield
        self._depth -= 1

    def count_arithmetic(self) -> None:
        """Raises QueryError at one operation too many."""
        self._arithmetic += 1
        if self._arithmetic > MAX_ARITHMETIC:
            raise self.fault(
                "query.too_deep", f"more than {MAX_ARITHMETIC} calculations in one condition"
            )

    def count_mixed(self, offset: int, characters: int) -> None:
        """Raises QueryError at one character of such LIKE pieces too many."""
        self._mixed += characters
        if self._mixed > MAX_MIXED:
            raise self.fault_at(
                offset,
                "query.too_many_wildcards",
                f"LIKE has pieces of {self._mixed} characters with '_' between letters; "
                f"{MAX_MIXED} are allowed in one condition",
            )
