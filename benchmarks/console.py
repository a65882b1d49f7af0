"""The console over 100,000 things while 1,000 events come every second, measured in Chromium; and
what open consoles cost the node. [CN-15]

Needs a Chromium on this machine. The page shows the list of things and is scrolled for as long as
frames are counted.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
from playwright.async_api import Page, async_playwright

from benchmarks.results import Result, limit, rate, share
from rapport.core.times import format_time
from rapport.kernel.clock import SystemClock
from rapport.web.console import PAGE
from support.browser import OPTIONS, browser_program
from support.processes.node import NodeProcess

_CLOCK = SystemClock()
_SITE = """
[site]
name = "many"
[concepts.sensor.attributes]
temperature = "number"
[concepts.sensor.units]
temperature = "degC"
[tables]
sensors = { concept = "sensor", csv = "sensors.csv", key = "id" }
[sources.sensors]
concept = "sensor"
attribute = "temperature"
key = "sensor"
time = "time"
value = "temperature"
"""
_PER_SECOND, _STEPS = 1_000, 10
_CONSOLES = 20
_BATCH = 1_000
_FRAMES = """seconds => new Promise(done => {
  const taken = [], began = performance.now();
  let last = began;
  const frame = now => {
    taken.push(now - last);
    last = now;
    scrollBy(0, 40);
    now - began < seconds * 1000 ? requestAnimationFrame(frame) : done(taken.slice(1));
  };
  requestAnimationFrame(frame);
})"""
_FIRST = """() => new Promise(done => new PerformanceObserver(list => done(
  list.getEntries().at(-1).startTime)).observe(
    { type: "largest-contentful-paint", buffered: true }))"""


def run(quick: bool) -> dict[str, Any]:
    """All measurements; progress goes to stderr."""
    things = 10_000 if quick else 100_000
    with _node(things) as address:
        _send(address, things, things)  # every thing has a value
        found = asyncio.run(_page(address, things, 3 if quick else 10))
        found.append(_first_load())
        found.append(_throughput(address, things, 30 if quick else 100))
    return {"name": "console", "results": found}


@contextmanager
def _node(things: int) -> Iterator[tuple[str, int]]:
    with tempfile.TemporaryDirectory(prefix="rapport-bench-") as directory:
        site = Path(directory)
        (site / "site.toml").write_text(_SITE)
        rows = [f"s{number}" for number in range(things)]
        (site / "sensors.csv").write_text("\n".join(["id", *rows, ""]))
        with NodeProcess(site) as node:
            node.start()
            assert node.doors is not None
            yield node.doors


# A frame takes as long as its work, not as long as the screen waits.
_UNLIMITED = ("--disable-frame-rate-limit", "--disable-gpu-vsync")


async def _page(address: tuple[str, int], things: int, seconds: int) -> list[Result]:
    """First content, frames while things change and the list is scrolled, and memory."""
    url = f"http://{address[0]}:{address[1]}/console/things/sensor"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=browser_program(),
            args=[*OPTIONS, *_UNLIMITED, "--enable-precise-memory-info", "--js-flags=--expose-gc"],
        )
        page = await browser.new_page(viewport={"width": 1280, "height": 900})
        await page.goto(url)
        await page.get_by_role("row").nth(20).wait_for()
        first_ms = float(await page.evaluate(_FIRST))
        stop = threading.Event()
        sender = threading.Thread(target=_steadily, args=(address, things, stop))
        sender.start()
        try:
            frames = list(await page.evaluate(_FRAMES, seconds))
            megabytes = await _heap(page)
        finally:
            stop.set()
            sender.join()
        await browser.close()
    _say(f"{len(frames)} frames, {first_ms:.0f} ms to the content, {megabytes:.0f} MB")
    name = f"{things:,} things, {_PER_SECOND:,} events/s"
    return [
        limit(f"largest content of the list of {things:,} things", first_ms / 1_000, "s", 1),
        limit(f"frame, median, {name}", share(frames, 50), "ms", 16),
        limit(f"frame, p95, {name}", share(frames, 95), "ms"),
        limit(f"memory of the page's scripts, {name}", megabytes, "MB", 150),
    ]


async def _heap(page: Page) -> float:
    """What the scripts hold after a collection."""
    await page.evaluate("gc()")
    return float(await page.evaluate("performance.memory.usedJSHeapSize")) / 1e6


def _first_load() -> Result:
    """What the page names itself, compressed; the rest is loaded when it is needed."""
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    names = re.findall(r'(?:src|href)="/console-files/([^"]+\.(?:js|css))"', page)
    assert names, "the page names no script"
    size = sum(len(gzip.compress((PAGE / name).read_bytes())) for name in names)
    return limit(
        "first load, compressed", (size + len(gzip.compress(page.encode()))) / 1e3, "kB", 300
    )


def _throughput(address: tuple[str, int], things: int, batches: int) -> Result:
    """Events accepted with open consoles against without, in turns."""
    ratios = []
    for _ in range(3):
        alone = _accepted(address, things, batches)
        open_ones = [_listen(address) for _ in range(_CONSOLES)]
        beside = _accepted(address, things, batches)
        for one in open_ones:
            one.shutdown(socket.SHUT_RDWR)
        ratios.append(beside / alone)
        _say(f"{alone:,.0f} events/s alone, {beside:,.0f} with {_CONSOLES} consoles")
    return rate(
        f"events with {_CONSOLES} open consoles / without", share(ratios, 50), "times", 0.95
    )


def _accepted(address: tuple[str, int], things: int, batches: int) -> float:
    began_ns = _CLOCK.steady_ns()
    _send(address, things, batches * _BATCH)
    return batches * _BATCH / ((_CLOCK.steady_ns() - began_ns) / 1e9)


def _listen(address: tuple[str, int]) -> socket.socket:
    """An open console: its live stream, read by a thread until it is shut down."""
    line = socket.create_connection(address)
    line.sendall(b"GET /live HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (address[0].encode(), address[1]))
    threading.Thread(target=_drain, args=(line,), daemon=True).start()
    return line


def _drain(line: socket.socket) -> None:
    with line:
        while line.recv(65_536):
            pass


def _steadily(address: tuple[str, int], things: int, stop: threading.Event) -> None:
    """A thousand events every second, in parts, until it is stopped."""
    part = _PER_SECOND // _STEPS
    for step in range(1_000_000):
        if stop.wait(1 / _STEPS):
            return
        _send(address, things, part, step * part)


def _send(address: tuple[str, int], things: int, count: int, first: int = 0) -> None:
    connection, seen = HTTPConnection(*address), format_time(_CLOCK.now_ms())
    for begin in range(first, first + count, _BATCH):
        numbers = range(begin, min(begin + _BATCH, first + count))
        rows = [
            {"sensor": f"s{number % things}", "time": seen, "temperature": number % 40 / 2}
            for number in numbers
        ]
        body = msgspec.json.encode(rows)
        connection.request("POST", "/sources/sensors", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
    connection.close()


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
