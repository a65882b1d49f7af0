"""Sources that a running node adds to its site's file and takes back. [CN-6]"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from rapport.core.errors import Conflict, InvalidInput, Problem, SiteError, Unavailable
from rapport.kernel.tasks import run_blocking
from rapport.kernel.telemetry import get_logger
from rapport.node.interpretations import OTHER_STREAMS
from rapport.node.site_changes import NEEDS_RESTART, SiteChanges, WrittenChange
from rapport.site.broker_survey import listen
from rapport.site.new_source import (
    NewSource,
    SourceDraft,
    added_sources,
    draft_source,
    load_site_file,
    raw_text,
    readable,
    site_without,
    with_part,
    without_part,
)
from rapport.site.site import SITE_FILE

_log = get_logger(__name__)
MAX_SAMPLE_BYTES = 1024 * 1024
_BROKER = b"\n[mqtt."


class SourceWritten(msgspec.Struct, frozen=True, kw_only=True):
    """A source that was added or taken back."""

    name: str = ""
    sources: list[str] = []
    text: str = ""
    """The part of site.toml; empty when it was taken back."""
    in_force: bool = False
    """Whether the node has taken the file over; else it has to be started again."""
    restart: list[Problem] = []
    """Why the node has to be started again: new streams and brokers wait for it."""


class SourceFiles:
    """Adds sources to the site's file as changes of it. Belongs to the node's event loop."""

    def __init__(self, directory: Path, changes: SiteChanges) -> None:
        self._directory, self._changes = directory, changes
        self._is_listening = False

    async def listen(self, origin: str, *, password: str, listen_ms: int) -> list[NewSource]:
        """What a broker's topics or an address hold; one at a time. Raises Conflict while another
        listens, InvalidInput.
        """
        if self._is_listening:
            raise Conflict(
                "somebody listens already",
                code="source.listening",
                hint="try again in a minute",
            )
        self._is_listening = True
        try:
            found = listen(origin, self._directory, password=password, listen_ms=listen_ms)
            return await found
        except Unavailable as error:  # what was asked for cannot be had; the node itself is well
            raise InvalidInput(error.message, code=error.code, hint=error.hint) from None
        finally:
            self._is_listening = False

    async def added(self) -> list[str]:
        """The names of sources that can be taken back."""
        return added_sources(await run_blocking(lambda: raw_text(self._directory)))

    async def draft(self, new: NewSource) -> SourceDraft:
        """What would be written; nothing is changed. Raises InvalidInput, DuplicateName."""
        return await run_blocking(lambda: self._draft(new))

    async def add(self, new: NewSource, *, by: str) -> SourceWritten:
        """Writes a source and takes it over; returns when it counts. Raises InvalidInput for what
        nobody has said yet, SiteError for what the check or the node refuses, Conflict when the
        file cannot be written; then nothing is changed.
        """
        async with self._changes.turn:
            draft = await self.draft(new)
            if draft.needed:
                first = draft.needed[0]
                raise InvalidInput(
                    first.because,
                    code=f"source.no_{first.kind}",
                    hint="answer it in `choices`, or take what is likely",
                )
            if draft.errors:
                raise SiteError(draft.errors)
            before = await run_blocking(lambda: raw_text(self._directory))
            after = with_part(before, draft.text)
            done = await self._write(before, after, by)
        _log.info("source added", source=draft.name, by=by)
        return SourceWritten(
            name=draft.name,
            sources=draft.sources,
            text=draft.text,
            in_force=done.in_force,
            restart=done.restart,
        )

    async def take_back(self, name: str, *, by: str) -> SourceWritten:
        """Takes a source out again. Raises UnknownName, Conflict when it was changed since,
        SiteError when something needs it.
        """
        async with self._changes.turn:
            before = await run_blocking(lambda: raw_text(self._directory))
            after = without_part(before, name)
            await run_blocking(lambda: site_without(self._directory, name))
            done = await self._write(before, after, by)
        _log.info("source taken back", source=name, by=by)
        return SourceWritten(name=name, in_force=done.in_force, restart=done.restart)

    async def _write(self, before: bytes, after: bytes, by: str) -> WrittenChange:
        """New streams and brokers wait for the next start; anything else that does refuses the
        change."""
        has_other_brokers = before.count(_BROKER) != after.count(_BROKER)
        waiting = (OTHER_STREAMS, NEEDS_RESTART) if has_other_brokers else (OTHER_STREAMS,)
        return await self._changes.write(SITE_FILE, before, after, by=by, waiting=waiting)

    def _draft(self, new: NewSource) -> SourceDraft:
        sample: Any = msgspec.structs.replace(new, raw=readable(new.raw))
        return draft_source(sample, load_site_file(self._directory), self._directory)
