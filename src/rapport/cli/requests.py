"""Many things for a node, in requests that it takes. [UX-3, CH-12]"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

MOST_AT_ONCE = 1_000
MOST_BYTES = 4 * 1024 * 1024
"""Half of what a node takes in one request if its site does not say otherwise."""


def request_bodies(parts: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """JSON arrays of the parts, which are JSON themselves, and how many are in each; one that is
    larger than a request should be goes alone.
    """
    body: list[bytes] = []
    size = 0
    for part in parts:
        if body and (len(body) == MOST_AT_ONCE or size + len(part) > MOST_BYTES):
            yield len(body), _array(body)
            body, size = [], 0
        body.append(part)
        size += len(part)
    if body:
        yield len(body), _array(body)


def _array(parts: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(parts) + b"]"
