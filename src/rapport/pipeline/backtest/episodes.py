"""The episodes of a back-test: beginnings of situations with their ends. [SI-12]

A detection of `conditions` counts as an episode of one millisecond, so that both kinds of policies
can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rapport.pipeline.backtest.findings import (
    NO_END,
    EpisodeFigures,
    Findings,
    Flags,
    Numbers,
    finding_keys,
)


class Episodes:
    """The episodes that touch a period, in the order of their beginnings.

    `begins` and `ends` are those of the situation, which may lie outside of the period; an open
    episode ends with the period.
    """

    def __init__(
        self, found: Findings, begin: int | None, ended: int, *, is_situation: bool
    ) -> None:
        """
        Args:
            found: beginnings and ends up to the end of the period, from the first on.
            begin: of the period; None: that of the history.
            ended: the last instant of the period that the history reaches.
        """
        is_begin = found.began() == NO_END
        begun = found.chosen(is_begin)
        begins = begun.times()
        ends, is_open = begins + 1, np.zeros(len(begins), np.bool_)
        if is_situation:
            ends, is_open = _ends(begun, found.chosen(~is_begin), ended)
        chosen = np.ones(len(begins), np.bool_) if begin is None else is_open | (ends > begin)
        self.findings = begun.chosen(chosen)
        """Of each episode its beginning."""
        self.begins, self.ends, self.is_open = begins[chosen], ends[chosen], is_open[chosen]
        self.after = self.ends + self.is_open
        """The first instant at which each is over, or may be."""
        self._period_begin, self.is_situation = begin, is_situation

    def __len__(self) -> int:
        return len(self.begins)

    def lengths(self) -> Numbers:
        """How long each lasted within the period."""
        begins = self.begins
        if self._period_begin is not None:
            begins = np.maximum(begins, self._period_begin)
        return np.asarray(self.ends - begins, np.int64)

    def figures(self) -> EpisodeFigures:
        lengths = self.lengths()
        return EpisodeFigures(
            episodes=len(self),
            open=int(self.is_open.sum()),
            total_ms=int(lengths.sum()),
            longest_ms=int(lengths.max(initial=0)),
        )


def only_one_episode(first: Episodes, second: Episodes, by: Sequence[str]) -> tuple[Flags, Flags]:
    """Of either side which episodes overlap none of the other about the same identities."""
    keys = [pa.array(finding_keys(side.findings, by), pa.binary()) for side in (first, second)]
    codes = pc.dictionary_encode(pa.concat_arrays(keys)).indices.to_numpy()
    ours, theirs = codes[: len(first)], codes[len(first) :]
    return (
        ~_overlaps(ours, first, theirs, second),
        ~_overlaps(theirs, second, ours, first),
    )


def episode_rows(found: Findings, episodes: Episodes, alone: Flags) -> Flags:
    """Of beginnings and ends which belong to episodes that are flagged."""
    aliases, is_begin = found.aliases(), found.began() == NO_END
    flagged = pa.array(finding_keys(episodes.findings.chosen(alone), aliases, "time"), pa.binary())
    flags = np.zeros(len(found), np.bool_)
    for chosen, column in ((is_begin, "time"), (~is_begin, "began")):
        keys = pa.array(finding_keys(found.chosen(chosen), aliases, column), pa.binary())
        flags[chosen] = _flags(pc.is_in(keys, flagged))
    return flags


def _ends(begun: Findings, over: Findings, ended: int) -> tuple[Numbers, Flags]:
    """When each beginning is over, and whether it is not."""
    aliases = sorted({*begun.aliases(), *over.aliases()})
    places = pc.index_in(
        pa.array(finding_keys(begun, aliases, "time"), pa.binary()),
        pa.array(finding_keys(over, aliases, "began"), pa.binary()),
    )
    is_open = _flags(pc.is_null(places))
    ends = np.full(len(begun), ended, np.int64)
    ends[~is_open] = over.times()[pc.drop_null(places).to_numpy()]
    return ends, is_open


def _overlaps(
    codes: npt.NDArray[np.int32], own: Episodes, others: npt.NDArray[np.int32], other: Episodes
) -> Flags:
    """Which episodes overlap one of the others with the same code.

    One of them does if the latest end among those that begin before the own end lies after the own
    beginning.
    """
    count, width = len(codes), len(other) + 1
    ranked = np.unique(other.after)
    rank = np.searchsorted(ranked, other.after) + 1
    times = np.concatenate([own.after, other.begins])
    is_other = np.concatenate([np.zeros(count, np.int64), np.ones(len(others), np.int64)])
    both = np.concatenate([codes, others]).astype(np.int64)
    ranks = np.concatenate([np.zeros(count, np.int64), rank])
    order = np.lexsort((is_other, times, both))  # at one time the own end comes first
    latest = np.maximum.accumulate((both * width + ranks)[order]) - both[order] * width
    found = np.zeros(len(both), np.int64)
    found[order] = latest
    latest_ends = np.concatenate([[-(2**63)], ranked])[found[:count]]
    return np.asarray(latest_ends > own.begins, np.bool_)


def _flags(column: pa.Array | pa.ChunkedArray) -> Flags:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)
