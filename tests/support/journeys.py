"""Journeys: what a person does in the browser, step by step, as a test and as a page with pictures.

A test takes the steps that `docs/console/journeys.md` has under the journey's heading. Its pictures
stay as they are; `pytest tests/web/test_console_journeys.py --rewrite-pictures` takes them anew.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections import Counter
from functools import partial
from pathlib import Path

from playwright.async_api import Page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "console" / "journeys.md"
PICTURES = ROOT / "docs" / "pictures"
LARGEST_PICTURE_BYTES = 60_000
_STEP = re.compile(r"^\d+\. (.+)$", re.M)
_PICTURE = re.compile(r"!\[[^\]]*\]\(\.\./pictures/(console-[\w-]+\.png)\)")

_TWO_FRAMES = "() => new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))"


class Journey:
    """The steps and pictures of one journey as they are taken."""

    def __init__(self, heading: str, *, rewrites: bool) -> None:
        self.heading, self._rewrites = heading, rewrites
        self.steps: list[str] = []
        self.pictures: list[str] = []

    def step(self, text: str) -> None:
        """What the person does next, in the words of the page."""
        self.steps.append(text)

    async def picture(self, page: Page, name: str) -> None:
        """What the person sees now, from the top of the window."""
        self.pictures.append(name)
        if self._rewrites:
            await page.mouse.move(0, 0)
            await page.evaluate(_TWO_FRAMES)  # curves are drawn by then
            taken = await page.screenshot(animations="disabled", caret="hide")
            (PICTURES / name).write_bytes(with_palette(taken))

    def check(self) -> None:
        """The page has these steps and pictures, in this order, and each picture is there."""
        part = re.split(rf"^## {re.escape(self.heading)}$", PAGE.read_text("utf-8"), flags=re.M)[1]
        part = part.split("\n## ")[0]
        assert _STEP.findall(part) == self.steps
        assert _PICTURE.findall(part) == self.pictures
        for name in self.pictures:
            found = (PICTURES / name).read_bytes()
            assert found.startswith(b"\x89PNG"), name
            assert len(found) <= LARGEST_PICTURE_BYTES, (name, len(found))


def with_palette(png: bytes) -> bytes:
    """The same picture in its 256 most frequent colours, which takes half the space. What lies
    between them, at the edges of letters, becomes the nearest.
    """
    width, height, rows = _rows_of(png)
    lines = [[bytes(row[at : at + 3]) for at in range(0, width * 3, 3)] for row in rows]
    counts = Counter(pixel for line in lines for pixel in line)
    palette = [colour for colour, _ in counts.most_common(256)]
    near = {
        colour: min(range(len(palette)), key=partial(_distance, colour, palette))
        for colour in counts
    }
    body = b"".join(b"\0" + bytes(near[pixel] for pixel in line) for line in lines)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", b"".join(palette)),
        (b"IDAT", zlib.compress(body, 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _distance(colour: bytes, palette: list[bytes], place: int) -> int:
    return sum((a - b) ** 2 for a, b in zip(colour, palette[place], strict=True))


def _rows_of(png: bytes) -> tuple[int, int, list[bytearray]]:
    """Width, height and rows of a PNG as Chromium writes it: RGB, 8 bits, rows with filters."""
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert (depth, kind) == (8, 2), "this is no picture without transparency"
    at, packed = 8, b""
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            packed += png[at + 8 : at + 8 + length]
        at += length + 12
    raw, size = zlib.decompress(packed), width * 3
    rows, above = [], bytearray(size)
    for start in range(0, len(raw), size + 1):
        above = _unfiltered(raw[start], raw[start + 1 : start + 1 + size], above)
        rows.append(above)
    return width, height, rows


def _unfiltered(kind: int, packed: bytes, above: bytearray) -> bytearray:
    """A row without its filter (PNG specification, 9.2)."""
    row = bytearray(packed)
    for at in range(len(row)) if kind else ():
        left, corner = (row[at - 3], above[at - 3]) if at >= 3 else (0, 0)
        up = above[at]
        guess = left + up - corner
        paeth = min((left, up, corner), key=lambda one: abs(guess - one))
        row[at] = (row[at] + (0, left, up, (left + up) // 2, paeth)[kind]) & 255
    return row
