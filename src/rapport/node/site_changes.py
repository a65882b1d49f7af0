"""Changes of the site's files by people, while the node runs: shown as a difference, checked,
written and taken over, put back when refused, undone, and on record. [CN-14, CN-6]

The file is the truth. A change is noted below `site-changes/` of the data directory before the file
is written, so that a node that dies in between finds at its next start what became of it: the file
has the new content, and the start takes it over, or it has not, and the note is dropped. The
note keeps what the file was, for the undo. Who changed which file when is also an event in the
channel `site.changes`; texts are not in it, because not everybody who reads channels may read the
site file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import msgspec

from rapport.channel.channel import Channels
from rapport.core.errors import (
    Conflict,
    Problem,
    RapportError,
    SiteError,
    StaleVersion,
    TooLarge,
    UnknownName,
)
from rapport.core.event import content_id, make_event
from rapport.kernel.clock import Clock
from rapport.kernel.files import make_private_directory, write_atomically
from rapport.kernel.tasks import run_blocking
from rapport.kernel.telemetry import get_logger
from rapport.node.interpretations import OTHER_STREAMS
from rapport.site.file_changes import (
    check_new_file,
    check_writable,
    in_form_of,
    is_read_only,
    patch_of,
    problems_of_change,
    read_raw,
    replace_file,
)
from rapport.site.visible_files import LONGEST_TEXT, raw_digest, read_visible_file, visible_files

CHANNEL = "site.changes"
CHANGED = "rapport.site.changed"
NEEDS_RESTART = "reload.needs_restart"
NEEDING_A_START = (OTHER_STREAMS, NEEDS_RESTART, "site.other_on_spark")
"""Problems of a reload for which a change stays written: the next start takes it over."""
MOST_KEPT = 100
"""Changes with their difference; of older ones only the events stay."""
_DIRECTORY = "site-changes"
_log = get_logger(__name__)
Reload = Callable[[str], Awaitable[object]]
"""Takes over the site's files; the argument is the identity that asks for it."""


class ProposedChange(msgspec.Struct, frozen=True, kw_only=True):
    """What a change would do; nothing is changed."""

    file: str
    difference: str
    """As `git diff` writes it; empty: there is none."""
    problems: list[Problem]
    """Errors of the site as it would be, and warnings and hints that are new."""
    is_read_only: bool
    """Whether the difference can only be downloaded."""


class WrittenChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was made."""

    id: str = ""
    """For the undo; empty: nothing was to be changed."""
    file: str
    digest: str
    """Of the file as it is now; empty: it is gone."""
    difference: str
    in_force: bool = True
    """Whether the node has taken it over; else it has to be started again."""
    restart: list[Problem] = []
    """Why the node has to be started again."""
    is_written: bool = True
    """False: the site is read-only, and the difference is to be applied where it is kept."""


class SiteChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change on record."""

    id: str
    time: int
    by: str
    file: str
    difference: str
    undoes: str = ""
    """The change that was undone by this one."""
    undone: bool = False
    may_undo: bool = False
    """The last change of a file that is as this change left it."""


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    """A change as it is kept."""

    id: str
    time: int
    by: str
    file: str
    before: bytes | None
    digest: str
    difference: str
    undoes: str = ""
    is_published: bool = False


class _Prepared(msgspec.Struct, frozen=True, kw_only=True):
    before: bytes | None
    after: bytes
    proposed: ProposedChange


class SiteChanges:
    """Changes files one after the other. Belongs to the node's event loop; call `open` first."""

    def __init__(
        self, directory: Path, data: Path, channels: Channels, clock: Clock, reload: Reload
    ) -> None:
        self._directory, self._data = directory, data
        self._notes = data / _DIRECTORY
        self._channels, self._clock, self._reload = channels, clock, reload
        self.turn = asyncio.Lock()
        """To be held from reading a file to `write`."""

    async def open(self) -> None:
        """Finishes or drops the changes that were pending when the node died."""
        for note in await run_blocking(self._settle):
            await self._publish(note)

    def _settle(self) -> list[_Note]:
        make_private_directory(self._notes)
        unfinished = [one for one in self._read() if not one.is_published]
        now = {one.file: raw_digest(read_raw(self._directory, one.file)) for one in unfinished}
        written = [one for one in unfinished if now[one.file] == one.digest]
        for one in unfinished:
            if one not in written:
                self._path(one.id).unlink()
        return written

    # --- changes ---

    async def propose(self, name: str, text: str, *, expects: str) -> ProposedChange:
        """The difference and what the check says of the site with it; nothing is written. Raises as
        `apply` does, but for problems.
        """
        return (await run_blocking(lambda: self._prepare(name, text, expects))).proposed

    async def apply(self, name: str, text: str, *, expects: str, by: str) -> WrittenChange:
        """Changes a file, or makes a new one, and returns when it counts. `expects` is the digest
        of the content that the text is based on, empty for a new file.

        Raises StaleVersion with the difference when the file has another content, SiteError for
        what the check or the node refuses, InvalidInput for a name that cannot be a new file's,
        TooLarge; then everything is as it was. Writes nothing in a read-only site.
        """
        async with self.turn:
            found = await run_blocking(lambda: self._prepare(name, text, expects))
            proposed = found.proposed
            if errors := [one for one in proposed.problems if one.severity == "error"]:
                raise SiteError(errors)
            if not proposed.difference or proposed.is_read_only:
                return WrittenChange(
                    file=name,
                    digest=raw_digest(found.before),
                    difference=proposed.difference,
                    is_written=not proposed.difference,
                )
            return await self.write(name, found.before, found.after, by=by)

    async def undo(self, id: str, *, by: str) -> WrittenChange:
        """Gives a file the content from before a change, also by removing it. Raises UnknownName,
        Conflict unless it is the last change of the file and nobody changed it since, SiteError
        when the node refuses it. Writes nothing in a read-only site.
        """
        async with self.turn:
            note, now = await run_blocking(lambda: self._to_undo(id))
            name = note.file
            if await run_blocking(lambda: is_read_only(self._directory, name)):
                patch = patch_of(name, now, note.before)
                digest = raw_digest(now)
                return WrittenChange(
                    file=name, digest=digest, difference=patch, is_written=False, in_force=False
                )
            return await self.write(name, now, note.before, by=by, undoes=id)

    def _to_undo(self, id: str) -> tuple[_Note, bytes | None]:
        changes = {one.id: one for one in self._list()}
        if id not in changes:
            raise UnknownName("change", id, list(changes), code="site.unknown_change")
        if not changes[id].may_undo:
            raise Conflict(
                f"{changes[id].file} is not as this change left it",
                code="site.changed",
                hint="undo the last change first, or change the file by hand",
            )
        note = next(one for one in self._read() if one.id == id)
        return note, read_raw(self._directory, note.file)

    async def changes(self) -> list[SiteChange]:
        """The newest changes, newest first."""
        return await run_blocking(self._list)

    async def file_of(self, id: str) -> str:
        """Which file a change is of; empty for an unknown change."""
        return next((one.file for one in await self.changes() if one.id == id), "")

    async def write(
        self,
        name: str,
        before: bytes | None,
        after: bytes | None,
        *,
        by: str,
        undoes: str = "",
        waiting: Collection[str] = NEEDING_A_START,
    ) -> WrittenChange:
        """Replaces a file and takes it over; it is as before if the node refuses it. `waiting`:
        codes of problems with which it stays written for the next start. Call it while holding
        `turn`. Raises Conflict, SiteError.
        """
        await run_blocking(lambda: check_writable(self._directory, name))
        note = await run_blocking(lambda: self._note(name, before, after, by, undoes))
        restart: list[Problem] = []
        try:
            await run_blocking(lambda: replace_file(self._directory, name, before, after))
            try:
                await self._reload(by)
            except SiteError as error:
                restart = list(error.problems)
                if any(one.code not in waiting for one in restart):
                    raise
        except BaseException:
            await asyncio.shield(run_blocking(lambda: self._put_back(note, before, after)))
            raise
        await self._publish(note)
        _log.info("site changed", file=name, by=by, in_force=not restart)
        return WrittenChange(
            id=note.id,
            file=name,
            digest=note.digest,
            difference=note.difference,
            in_force=not restart,
            restart=restart,
        )

    def _put_back(self, note: _Note, before: bytes | None, after: bytes | None) -> None:
        if read_raw(self._directory, note.file) == after:
            replace_file(self._directory, note.file, after, before)
        self._path(note.id).unlink()

    # --- preparing ---

    def _prepare(self, name: str, text: str, expects: str) -> _Prepared:
        directory, data = self._directory, self._data
        before = self._content(name)
        after = in_form_of(before, text)
        if len(after) > LONGEST_TEXT:
            raise TooLarge(
                f"{name} would have {len(after):,} bytes, more than {LONGEST_TEXT:,}",
                code="site.file_too_large",
                hint="change the file by hand, then reload",
            )
        difference = patch_of(name, before, after)
        if difference and raw_digest(before) != expects:
            error = StaleVersion(
                f"{name} is not as it was when the change began", hint="look at it again, then save"
            )
            error.difference = difference
            raise error
        problems = problems_of_change(directory, data, name, after) if difference else []
        proposed = ProposedChange(
            file=name,
            difference=difference,
            problems=problems,
            is_read_only=is_read_only(directory, name),
        )
        return _Prepared(before=before, after=after, proposed=proposed)

    def _content(self, name: str) -> bytes | None:
        """Of a file that may be changed; None when it may be made. Raises InvalidInput, also for a
        file that is not shown.
        """
        directory, data = self._directory, self._data
        if name not in {one.name for one in visible_files(directory, data)}:
            check_new_file(directory, data, name)
            return None
        if not read_visible_file(directory, data, name).is_whole:
            raise TooLarge(
                f"{name} is too long to be changed here",
                code="site.file_too_large",
                hint="change the file by hand, then reload",
            )
        return read_raw(directory, name)

    # --- the record ---

    def _path(self, id: str) -> Path:
        return self._notes / f"{id}.json"

    def _read(self) -> list[_Note]:
        """All notes, oldest first; one that cannot be read is left out."""
        found = []
        for path in sorted(self._notes.glob("*.json")):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=_Note))
            except (OSError, msgspec.MsgspecError) as error:
                _log.warning("change not read", file=path.name, reason=str(error))
        return found

    def _note(
        self, name: str, before: bytes | None, after: bytes | None, by: str, undoes: str
    ) -> _Note:
        names = sorted(path.stem for path in self._notes.glob("*.json"))
        last = int(names[-1]) if names and names[-1].isdigit() else 0
        note = _Note(
            id=f"{last + 1:08}",
            time=self._clock.now_ms(),
            by=by,
            file=name,
            before=before,
            digest=raw_digest(after),
            difference=patch_of(name, before, after),
            undoes=undoes,
        )
        self._keep(note)
        for old in names[: -MOST_KEPT + 1]:
            self._path(old).unlink(missing_ok=True)
        return note

    def _keep(self, note: _Note) -> None:
        write_atomically(self._path(note.id), msgspec.json.encode(note), mode=0o600)

    async def _publish(self, note: _Note) -> None:
        """Puts a change that was made on record; if that fails now, at the next start."""
        lines = note.difference.splitlines()
        event = make_event(
            source="site",
            id=content_id(CHANNEL, note.id, note.file, note.digest, str(note.time)),
            type=CHANGED,
            subject=f"file/{note.file}",
            time=note.time,
            data={
                "change": note.id,
                "file": note.file,
                "by": note.by,
                "digest": note.digest,
                "added": sum(one.startswith("+") for one in lines[2:]),
                "removed": sum(one.startswith("-") for one in lines[2:]),
                "undoes": note.undoes,
            },
        )
        try:
            await self._channels.channel(CHANNEL).append([event])
            done = msgspec.structs.replace(note, is_published=True)
            await run_blocking(lambda: self._keep(done))
        except (RapportError, OSError) as error:
            _log.warning("change not published", file=note.file, by=note.by, reason=str(error))

    def _list(self) -> list[SiteChange]:
        notes = self._read()
        undone = {one.undoes for one in notes}
        last = {one.file: one.id for one in notes if not one.undoes and one.id not in undone}
        now = {name: raw_digest(read_raw(self._directory, name)) for name in last}
        return [
            SiteChange(
                id=one.id,
                time=one.time,
                by=one.by,
                file=one.file,
                difference=one.difference,
                undoes=one.undoes,
                undone=one.id in undone,
                may_undo=last.get(one.file) == one.id and now[one.file] == one.digest,
            )
            for one in reversed(notes)
        ]
