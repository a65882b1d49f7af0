"""Which answers say no: a person who cannot is asked no more, but has not taken care of it. Pure.
[CO-8, CO-10]
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache

DECLINE = "DECLINE"
"""The subtype of a message that declines what it refers to."""
DECLINING_WORDS = ("no", "nein", "non", "cannot", "i cannot")
"""Unless the site says others."""
_SHORT = 100


class Declines:
    """Tells answers that decline from others; a site has its own words for it."""

    def __init__(self, words: Iterable[str] = DECLINING_WORDS) -> None:
        self._words = frozenset(plain_word(word) for word in words)
        # People say the same things: the same few words are looked at once.
        self._says_short = lru_cache(maxsize=1_024)(self._says)

    def says(self, text: str, subtype: str = "") -> bool:
        """Whether an answer declines: by its subtype, or since its first line is one of the words
        and nothing else.

        >>> [Declines().says(text) for text in ("No!", "I cannot.\\nSorry", "no problem", "")]
        [True, True, False, False]
        """
        if subtype == DECLINE:
            return True
        return self._says_short(text) if len(text) <= _SHORT else self._says(text)

    def _says(self, text: str) -> bool:
        first, _, _ = text.strip().partition("\n")
        return plain_word(first) in self._words


def plain_word(text: str) -> str:
    """A text without case, blanks and final punctuation.

    >>> plain_word(" I  cannot... ")
    'icannot'
    """
    word = "".join(text.casefold().split())
    while word and unicodedata.category(word[-1]).startswith("P"):
        word = word[:-1]
    return word


USUAL_DECLINES = Declines()
