"""Which events silver holds, however long ago: keys of identities, and the day of each. [PI-3]

A key is a 64-bit hash; a hit is only a suspicion that the caller checks in the files of that day:
two identities of one key cost nothing. Keys lie sorted in a few files of growing size, mapped into
memory; small ones are merged into larger ones as they come, so a look-up stays logarithmic.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.core.errors import Corrupt
from rapport.pipeline.lake.places import SILVER

Keys = npt.NDArray[np.uint64]
Days = npt.NDArray[np.int32]

FOLDER = "_ids"
_READING, _CORRECTS, _HELD, _FOUND = "r", "c", "q", "d"


def reading_keys(sources: pa.Array, ids: pa.Array) -> Keys:
    """Keys of readings by their identity."""
    return _keys(_READING, sources, ids)


def correction_keys(sources: pa.Array, originals: pa.Array) -> Keys:
    """Keys under which corrections are found by what they correct."""
    return _keys(_CORRECTS, sources, originals)


def quarantine_keys(sources: pa.Array, ids: pa.Array, reasons: pa.Array) -> Keys:
    """Keys of what could not be used: an event stands there once for each reason."""
    return _keys(_HELD, sources, ids, reasons)


def detection_keys(ids: pa.Array) -> Keys:
    """Keys of detections; their ids tell their content."""
    return _keys(_FOUND, ids)


def _keys(kind: str, *parts: pa.Array) -> Keys:
    # Imported here: pandas comes with Spark, and takes a while.
    from pandas.util import hash_array  # type: ignore[import-untyped]

    if not len(parts[0]):
        return np.empty(0, np.uint64)
    # No name has an unprintable character, so the parts cannot run into each other.
    texts = pc.binary_join_element_wise(*(pc.cast(part, pa.string()) for part in parts), "\x00")
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    texts = pc.binary_join_element_wise(pa.scalar(kind), texts, "\x00")
    return np.asarray(hash_array(texts.to_numpy(zero_copy_only=False), categorize=False), np.uint64)


class IdIndex:
    """The keys of everything in silver; opened for one run."""

    def __init__(self, lake: Path) -> None:
        self._folder = lake / SILVER / FOLDER
        self.parts = sorted(path.stem for path in self._folder.glob("*.keys"))
        self._loaded: dict[str, tuple[Keys, Days]] = {}

    def days_of(self, asked: Keys) -> tuple[npt.NDArray[np.int64], Days]:
        """Numbers of the keys that are known, and the day of each; a key of several days comes
        several times.
        """
        numbers, days = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        order = np.argsort(asked, kind="stable")
        wanted = asked[order]
        for name in self.parts:
            keys, lies_in = self._load(name)
            first = keys.searchsorted(wanted, "left")
            last = keys.searchsorted(wanted, "right")
            hit = np.flatnonzero(last > first)
            counts = last[hit] - first[hit]
            numbers.append(np.repeat(order[hit], counts))
            spans = [np.arange(first[one], last[one]) for one in hit]
            days.append(lies_in[np.concatenate(spans)] if spans else np.empty(0, np.int32))
        return np.concatenate(numbers), np.concatenate(days)

    def path(self, name: str, kind: str) -> Path:
        """Where a part's keys or days lie."""
        return self._folder / f"{name}.{kind}"

    def merged(self, keys: Keys, days: Days) -> tuple[Keys, Days, list[str]]:
        """The sorted part to add, with the parts that it takes the place of: all at the end that
        are not at least twice its size.
        """
        replaced: list[str] = []
        for name in reversed(self.parts):
            older, lies_in = self._load(name)
            if len(older) >= 2 * len(keys):
                break
            keys, days = np.concatenate((older, keys)), np.concatenate((lies_in, days))
            replaced.append(name)
        order = np.argsort(keys, kind="stable")
        return keys[order], days[order], replaced

    def next_name(self) -> str:
        """The name of a part to add; later than all others."""
        return f"{int(self.parts[-1]) + 1 if self.parts else 1:012d}"

    def changed(self, added: str, replaced: Sequence[str]) -> None:
        """The part was added on disk, those that it replaces are gone."""
        self.parts = [name for name in self.parts if name not in replaced] + [added]
        for name in replaced:
            self._loaded.pop(name, None)

    def _load(self, name: str) -> tuple[Keys, Days]:
        if name not in self._loaded:
            self._loaded[name] = (
                _mapped(self.path(name, "keys"), np.uint64),
                _mapped(self.path(name, "days"), np.int32),
            )
        return self._loaded[name]


def save(path: Path, values: npt.NDArray[np.generic]) -> None:
    """Writes keys or days."""
    with path.open("wb") as file:
        np.save(file, values)


def _mapped(path: Path, kind: type) -> npt.NDArray[Any]:
    try:
        values: npt.NDArray[Any] = np.load(path, mmap_mode="r")
        if values.dtype != kind or values.ndim != 1:
            raise ValueError(f"it holds {values.dtype}")
    except (OSError, ValueError, EOFError) as error:
        raise Corrupt(
            f"{path} cannot be read: {error}",
            code="lake.bad_index",
            hint="make silver again: rapport pipeline silver --rebuild",
        ) from None
    return values
