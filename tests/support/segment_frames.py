"""Frames of a segment file, whole, for tests that put them on a disk by hand. [CH-13]"""

from __future__ import annotations

from rapport.store.segment_files import encode_header


def encode_frame(
    body: bytes, *, first: int, count: int, received: int, index: int = 0, remaining: int = 0
) -> bytes:
    """Header and body of one block, as `SegmentLog` writes them."""
    header = encode_header(
        body, first=first, count=count, received=received, index=index, remaining=remaining
    )
    return header + body
