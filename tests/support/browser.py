"""A real browser for tests: Chromium without a window, where it is installed. [CO-16]"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from playwright.async_api import Browser, async_playwright

T = TypeVar("T")
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def browser_program() -> str | None:
    """The browser's program; None when there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@asynccontextmanager
async def browsing(url: str, *options: str) -> AsyncIterator[None]:
    """The page is open in a browser of its own, with scripts, while the block runs."""
    program = browser_program()
    assert program is not None, "ask browser_program first"
    with tempfile.TemporaryDirectory(prefix="rapport-browser-", ignore_cleanup_errors=True) as own:
        process = await asyncio.create_subprocess_exec(
            program,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"),
            *("--no-first-run", f"--user-data-dir={own}", *options, url),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.kill()
            await process.wait()


OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class BackgroundLoop:
    """An event loop in a thread of its own, which tests of one module share: a node and a browser
    are opened once.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="browser-tests")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], *, seconds: float = 60) -> T:
        """Does work there and gives its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def close(self) -> None:
        """Ends the loop; what was opened there must be closed before."""
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@asynccontextmanager
async def opened_browser() -> AsyncIterator[Browser]:
    """A browser without a window, driven by Playwright."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=browser_program(), args=list(OPTIONS)
        )
        try:
            yield browser
        finally:
            await browser.close()
