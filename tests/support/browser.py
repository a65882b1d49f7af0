"""A real browser for tests: Chromium without a window, where it is installed. [CO-16]"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def browser_program() -> str | None:
    """The browser's program; None when there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


async def shown_page(url: str) -> str:
    """The page as its scripts left it after some seconds, as HTML."""
    program = browser_program()
    assert program is not None, "ask browser_program first"
    with tempfile.TemporaryDirectory(prefix="rapport-browser-", ignore_cleanup_errors=True) as own:
        process = await asyncio.create_subprocess_exec(
            program,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *(f"--user-data-dir={own}", "--virtual-time-budget=3000", "--dump-dom", url),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        page, _errors = await process.communicate()
    return page.decode()


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
