"""Sources that a running node adds to its site's file and takes back. [CN-6]

The file is the truth: it is changed in one step, reloaded, and put back as it was when the node
cannot take it over.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from rapport.core.errors import InvalidInput, Problem, SiteError
from rapport.kernel.tasks import run_blocking
from rapport.kernel.telemetry import get_logger
from rapport.node.interpretations import OTHER_STREAMS
from rapport.node.node import Node
from rapport.site.new_source import (
    NewSource,
    SourceDraft,
    added_sources,
    draft_source,
    load_site_file,
    raw_text,
    readable,
    replace_site_file,
    site_without,
    with_part,
    without_part,
)

_log = get_logger(__name__)
MAX_SAMPLE_BYTES = 1024 * 1024


class SourceWritten(msgspec.Struct, frozen=True, kw_only=True):
    """A source that was added or taken back."""

    name: str = ""
    sources: list[str] = []
    text: str = ""
    """The part of site.toml; empty when it was taken back."""
    in_force: bool = False
    """Whether the node has taken the file over; else it has to be started again."""
    restart: list[Problem] = []
    """Why the node has to be started again: it takes in no new streams while it runs."""


class SourceFiles:
    """Changes the site's file one time after the other. Belongs to the node's event loop."""

    def __init__(self, node: Node) -> None:
        self._node, self._turn = node, asyncio.Lock()

    async def added(self) -> list[str]:
        """The names of sources that can be taken back."""
        return added_sources(await run_blocking(lambda: raw_text(self._node.site.directory)))

    async def draft(self, new: NewSource) -> SourceDraft:
        """What would be written; nothing is changed. Raises InvalidInput, DuplicateName."""
        return await run_blocking(lambda: self._draft(new))

    async def add(self, new: NewSource, *, by: str) -> SourceWritten:
        """Writes a source and takes it over; returns when it counts. Raises InvalidInput for what
        nobody has said yet, SiteError for what the check or the node refuses, Conflict when the
        file cannot be written; then nothing is changed.
        """
        async with self._turn:
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
            before = await run_blocking(lambda: raw_text(self._node.site.directory))
            done = await self._replace(before, with_part(before, draft.text), by)
        _log.info("source added", source=draft.name, by=by)
        return msgspec.structs.replace(
            done, name=draft.name, sources=draft.sources, text=draft.text
        )

    async def take_back(self, name: str, *, by: str) -> SourceWritten:
        """Takes a source out again. Raises UnknownName, Conflict when it was changed since,
        SiteError when something needs it.
        """
        async with self._turn:
            before = await run_blocking(lambda: raw_text(self._node.site.directory))
            after = without_part(before, name)
            await run_blocking(lambda: site_without(self._node.site.directory, name))
            done = await self._replace(before, after, by)
        _log.info("source taken back", source=name, by=by)
        return msgspec.structs.replace(done, name=name)

    def _draft(self, new: NewSource) -> SourceDraft:
        directory = self._node.site.directory
        sample: Any = msgspec.structs.replace(new, raw=readable(new.raw))
        return draft_source(sample, load_site_file(directory), directory)

    async def _replace(self, before: bytes, after: bytes, by: str) -> SourceWritten:
        """The file as it is to be, taken over; as it was if the node refuses it. What only a start
        can take over stays written.
        """
        directory = self._node.site.directory
        await run_blocking(lambda: replace_site_file(directory, before, after))
        try:
            await self._node.reload(by=by)
            return SourceWritten(in_force=True)
        except SiteError as error:
            problems = list(error.problems)
            if all(one.code == OTHER_STREAMS for one in problems):
                return SourceWritten(restart=problems)
            await run_blocking(lambda: replace_site_file(directory, after, before))
            raise
        except BaseException:
            await asyncio.shield(run_blocking(lambda: replace_site_file(directory, after, before)))
            raise
