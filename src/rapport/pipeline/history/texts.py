"""Texts as numbers while rows are sorted and filtered: a worker compares each text once. [PI-5]"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Codes = npt.NDArray[np.int32]

_FEW = 4_096
"""Up to so many different texts operators get them as a dictionary, beyond as plain text: looking
all of them up for every batch would cost more than the batch."""


class Texts:
    """Numbers texts in the order they are met. Grows with the number of different ones."""

    def __init__(self) -> None:
        self.known: list[str] = []
        self._codes: dict[str, int] = {}
        self._array: pa.Array = pa.array([], pa.string())
        self._last: tuple[pa.Array, Codes] | None = None

    def code(self, text: str) -> int:
        """The number of one text."""
        found = self._codes.get(text)
        if found is None:
            found = self._codes[text] = len(self.known)
            self.known.append(text)
        return found

    def codes(self, column: pa.Array) -> Codes:
        """The numbers of a column without nulls, plain text or a dictionary."""
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        numbers = self._of_dictionary(encoded.dictionary)
        found: Codes = numbers[encoded.indices.to_numpy()]
        return found

    def column(self, codes: pa.Array) -> pa.Array:
        """The texts of numbers: a dictionary when there are few, else plain text."""
        if len(self._array) < len(self.known):
            self._array = pa.array(self.known, pa.string())
        if len(self.known) <= _FEW:
            return pa.DictionaryArray.from_arrays(codes, self._array)
        return self._array.take(codes)

    def plain(self, codes: Sequence[int]) -> list[str]:
        """The texts of some numbers."""
        return [self.known[code] for code in codes]

    def _of_dictionary(self, dictionary: pa.Array) -> Codes:
        """The batches of a row group mostly share one dictionary: it is looked up once."""
        if self._last is not None and _is_same(self._last[0], dictionary):
            return self._last[1]
        texts = dictionary.to_pylist()
        numbers = np.fromiter(map(self.code, texts), np.int32, len(texts))
        self._last = dictionary, numbers
        return numbers


def _is_same(first: pa.Array, second: pa.Array) -> bool:
    """Whether two arrays are the same memory; the first is held, so its memory is not reused."""
    if len(first) != len(second) or first.offset != second.offset:
        return False
    buffers = zip(first.buffers(), second.buffers(), strict=True)
    return all((a and a.address) == (b and b.address) for a, b in buffers)
