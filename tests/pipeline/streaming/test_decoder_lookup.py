"""Neighbouring positions are read at once."""

from __future__ import annotations

from rapport.pipeline.streaming.decoder import runs


def test_neighbouring_positions_are_one_piece() -> None:
    pieces = [(one.after, one.through) for one in runs([9, 3, 4, 5, 7])]
    assert pieces == [(2, 5), (6, 7), (8, 9)]
    assert list(runs([])) == []
