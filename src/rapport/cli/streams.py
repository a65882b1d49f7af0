"""The streams that we were started with: some are closed, some lose their reader (`| head`), some
find no room. [UX-3]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def open_closed_streams() -> None:
    """Streams that we were started without (`>&-`) lead nowhere: as they are, every look at them
    fails, and the next file that is opened would take their place.
    """
    if sys.stdin is None:
        # Open as long as the process, as all of them: there is no end to close it at.
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        _lead_nowhere("stdout")
    if sys.stderr is None:
        _lead_nowhere("stderr")


def leave_unread() -> None:
    """What is still to be written goes nowhere, now that a reader left; the end of the process
    would complain of it, and spoil the exit code.
    """
    _lead_nowhere("stdout")
    _lead_nowhere("stderr")


def write_out() -> OSError | None:
    """Writes what is still kept back; returns why stdout did not take it, which is then given up.

    What stderr does not take is given up without a word: there is no place to say so.
    """
    _flushed("stderr")
    return _flushed("stdout")


def _flushed(name: str) -> OSError | None:
    stream = getattr(sys, name)
    try:
        if stream is not None:
            stream.flush()
    except OSError as error:
        _lead_nowhere(name)
        return error
    return None


def _lead_nowhere(name: str) -> None:
    setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
